"""Draw dropout for a tensor that processes share as one process draws it for the whole."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.tensor import DTensor

from whet.parallel.pieces import part_for


def dropped(x: Tensor, share: float, *, is_training: bool) -> Tensor:
    """Return x with a share of its numbers set to zero and the others made larger, where a model trains.

    The processes that hold parts or copies of x draw for the whole, from generators in equal states.
    """
    if not isinstance(x, DTensor):
        return F.dropout(x, share, is_training)
    if not is_training:
        return x
    factors = F.dropout(torch.ones(x.shape, dtype=x.dtype, device=x.device), share)
    found: Tensor = x * part_for(factors, x)
    return found
