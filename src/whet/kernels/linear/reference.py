"""Compute the packed linear layer in torch, as the reference.

Shape suffixes: M rows (any dimensions), N outputs, K inputs.
"""

import torch
from torch import Tensor

from whet.kernels.linear.layout import Kind


def linear_as_packed(x_MK: Tensor, weight_NK: Tensor, bias_N: Tensor | None, kind: Kind) -> Tensor:
    """Return [M, N] in the type of the weights. The weights are the kernel's, and activations are rounded as there."""
    x_MK = x_MK.float()
    if kind is Kind.BF16:
        x_MK = x_MK.bfloat16()
    elif kind is not Kind.F32:
        x_MK = quantise_rows(x_MK)
    y_MN = x_MK.to(weight_NK.dtype) @ weight_NK.T
    return y_MN if bias_N is None else y_MN + bias_N


def quantise_rows(x_MK: Tensor) -> Tensor:
    """Round each row to 8 bits, symmetric, with the largest magnitude at 127. Return the rounded numbers."""
    most_M1 = x_MK.abs().amax(dim=-1, keepdim=True)
    inverse_M1 = torch.where(most_M1 > 0, 127 / most_M1, 0.0)
    return (x_MK * inverse_M1).round() * (most_M1 / 127)
