"""What processes do in the tests of timed collectives."""

from typing import Any

import torch
from torch import distributed

from whet.parallel.links import OPERATIONS, _call, time_collective
from whet.parallel.ranks import Ranks


def timed(ranks: Ranks, num_bytes: int) -> list[dict[str, Any]]:
    """Time each operation."""
    device = torch.device("cpu")
    return [time_collective(ranks, one, num_bytes, device).model_dump() for one in OPERATIONS]


def moved(ranks: Ranks) -> dict[str, list[float]]:
    """Return what each operation leaves in the tensor of this process, which held its rank + 1 before."""
    found = {}
    for one in OPERATIONS:
        whole = torch.full((2 * ranks.world_size,), float(ranks.rank + 1))
        _call(one, ranks, whole)()
        distributed.barrier()
        found[one] = whole.tolist()
    return found
