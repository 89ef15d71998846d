"""Refuse a new model that has no room, before it is made."""

from typing import Any

import torch

from whet.errors import TargetError
from whet.measure.memory import free_bytes
from whet.models.trainable import Trainable
from whet.ui.figures import num_bytes


def check_room(family: Trainable, config: Any) -> None:
    """Check that the weights of a new model fit into the free memory.

    Raises:
        TargetError: They do not.
    """
    with torch.device("meta"):
        weights = sum(p.nbytes for p in family.build(config).parameters())
    free = free_bytes(with_swap=True)
    if weights > free:
        *others, last = (f"model.{key}" for key in family.size_keys)
        raise TargetError(
            f"the weights of this model take {num_bytes(weights)}, and {num_bytes(free)} of memory are free; make "
            f"{', '.join(others)} or {last} smaller"
        )
