"""Say how much memory is free, and refuse a new model that has no room, before it is made."""

import psutil
import torch

from whet.errors import TargetError
from whet.figures import num_bytes
from whet.measure.cgroup import memory_limit
from whet.models.decoder.config import DecoderConfig
from whet.models.decoder.reference import Decoder


def free_bytes() -> int:
    """Return the memory that this process may still take, the swap included."""
    free: int = psutil.virtual_memory().available + psutil.swap_memory().free
    limit = memory_limit()
    return free if limit is None else min(free, limit - psutil.Process().memory_info().rss)


def check_room(config: DecoderConfig) -> None:
    """Check that the weights of a new decoder fit into the free memory.

    Raises:
        TargetError: They do not.
    """
    with torch.device("meta"):
        weights = sum(p.nbytes for p in Decoder(config).parameters())
    free = free_bytes()
    if weights > free:
        raise TargetError(
            f"the weights of this model take {num_bytes(weights)}, and {num_bytes(free)} of memory are free; make "
            "model.hidden_size, model.intermediate_size or model.num_hidden_layers smaller"
        )
