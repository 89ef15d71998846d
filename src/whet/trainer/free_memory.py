"""Refuse a new model that has no room, before it is made."""

import torch

from whet.errors import TargetError
from whet.figures import num_bytes
from whet.measure.memory import free_bytes
from whet.models.decoder.config import DecoderConfig
from whet.models.decoder.reference import Decoder


def check_room(config: DecoderConfig) -> None:
    """Check that the weights of a new decoder fit into the free memory.

    Raises:
        TargetError: They do not.
    """
    with torch.device("meta"):
        weights = sum(p.nbytes for p in Decoder(config).parameters())
    free = free_bytes(with_swap=True)
    if weights > free:
        raise TargetError(
            f"the weights of this model take {num_bytes(weights)}, and {num_bytes(free)} of memory are free; make "
            "model.hidden_size, model.intermediate_size or model.num_hidden_layers smaller"
        )
