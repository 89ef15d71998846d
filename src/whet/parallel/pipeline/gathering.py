"""Bring the weights of all stages to the first process."""

from collections.abc import Mapping

import torch
from torch import Tensor, distributed

from whet.parallel.ranks import Ranks


def gathered(own: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """Return the tensors of all processes on the first one, and none on the others. All must call it.

    Args:
        own: What this process holds, on the CPU. Of a name that several hold, that of the first one is taken.
    """
    told = ranks.gather("the names of weights", {name: [list(x.shape), str(x.dtype)] for name, x in own.items()})
    owners: dict[str, int] = {}
    for rank, names in enumerate(told):
        for name in names:
            owners.setdefault(name, rank)
    found = dict(own) if ranks.is_first else {}
    for name, rank in owners.items():
        if rank and ranks.is_first:
            shape, dtype = told[rank][name]
            found[name] = torch.empty(shape, dtype=getattr(torch, dtype.removeprefix("torch.")))
            distributed.recv(found[name], rank)
        elif rank and rank == ranks.rank:
            distributed.send(own[name].contiguous(), 0)
    return found
