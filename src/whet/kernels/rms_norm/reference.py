"""What the normalisation operators compute, in torch. Source: Zhang and Sennrich, 2019, arXiv:1910.07467.

Suffixes: M rows, D width.
"""

import torch
from torch import Tensor


def rms_norm_reference(x_MD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight, in the type of x."""
    return x_MD * torch.rsqrt(x_MD.square().mean(dim=-1, keepdim=True) + eps) * weight_D.to(x_MD.dtype)


def quantise_reference(y_MD: Tensor) -> tuple[Tensor, Tensor]:
    """int8 [M, D] with the largest magnitude of a row at 127, and the scales [M] that make them numbers again."""
    most_M1 = y_MD.abs().amax(dim=-1, keepdim=True)
    inverse_M1 = torch.where(most_M1 > 0, 127 / most_M1, 0.0)
    return (y_MD * inverse_M1).round().to(torch.int8), most_M1[..., 0] / 127
