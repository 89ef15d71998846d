"""Round float32 to bfloat16 by chance, with odds that make the result right on average."""

import torch
from torch import Tensor

from whet.kernels.dispatch import kernels_for, pointer


def rounded_stochastically(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return float32 numbers in bfloat16, each rounded up or down by chance.

    Infinite numbers and NaN stay what they are. On a CPU one pass of whet's own kernel reads 4 and writes 2 bytes of
    each number; elsewhere operators of PyTorch do it. The generator is on the device of x.
    """
    is_plain = x.is_contiguous() and x.dim() > 0 and 0 < x.numel() < 2**32 and max(x.shape) < 2**31
    library = kernels_for(x) if is_plain and x.dtype is torch.float32 and x.device.type == "cpu" else None
    if library is None:
        return _rounded_in_torch(x, generator)
    seed, salt = torch.randint(-(2**31), 2**31, (2,), dtype=torch.int64, generator=generator).tolist()
    rounded = torch.empty_like(x, dtype=torch.bfloat16)
    num_rows = x.numel() // x.shape[-1]
    library.functions.whet_round_by_chance(pointer(x), num_rows, x.shape[-1], seed, salt, pointer(rounded))
    return rounded


def _rounded_in_torch(x: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randint(0, 2**16, x.shape, dtype=torch.int32, device=x.device, generator=generator)
    rounded = ((x.view(torch.int32) + noise) & -(2**16)).view(torch.float32)
    return torch.where(x.isfinite(), rounded, x).bfloat16()
