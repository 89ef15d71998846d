"""What the packed linear layer computes, in torch."""

import torch
from torch import Tensor

from whet.kernels.linear.packed import Kind
from whet.kernels.linear.quantise import quantise_int4, quantise_int8


def linear_reference(x_MK: Tensor, weight_NK: Tensor, bias_N: Tensor | None, kind: Kind) -> Tensor:
    """float64 [M, N]: weights and activations rounded as the kernel rounds them, products and sums exact."""
    x_MK, weight_NK = x_MK.float(), weight_NK.float()
    if kind is Kind.BF16:
        x_MK, weight_NK = x_MK.bfloat16().float(), weight_NK.bfloat16().float()
    elif kind is not Kind.F32:
        weight_NK = (quantise_int8(weight_NK) if kind is Kind.S8 else quantise_int4(weight_NK)).dequantise()
        x_MK = quantise_rows(x_MK)
    y_MN = x_MK.double() @ weight_NK.double().T
    return y_MN if bias_N is None else y_MN + bias_N.double()


def quantise_rows(x_MK: Tensor) -> Tensor:
    """Each row to 8 bits, symmetric, the largest magnitude at 127; as numbers again."""
    scale_M1 = x_MK.abs().amax(dim=1, keepdim=True) / 127
    inverse_M1 = torch.where(scale_M1 > 0, 127 / (scale_M1 * 127), 0.0)
    return (x_MK * inverse_M1).round() * scale_M1
