"""Compute a causal convolution of each channel in torch, and its gradients.

Shape suffixes: B batch, L tokens, C channels, K taps, S = K - 1 inputs before the first token.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def padded_inputs(x_BLC: Tensor, taps: int, initial_BSC: Tensor | None, wide: torch.dtype) -> Tensor:
    """Return the inputs after those before the first token, [B, K - 1 + L, C]."""
    B, _, C = x_BLC.shape
    before = x_BLC.new_zeros(B, taps - 1, C, dtype=wide) if initial_BSC is None else initial_BSC.to(wide)
    return torch.cat((before, x_BLC.to(wide)), dim=1)


def conv_sums(x_BLC: Tensor, weight_CK: Tensor, bias_C: Tensor | None, initial_BSC: Tensor | None) -> Tensor:
    """Return the sums before the activation, [B, L, C], in float32 or float64. Autograd can go through it."""
    wide = torch.promote_types(x_BLC.dtype, torch.float32)
    taps, length = weight_CK.shape[1], x_BLC.shape[1]
    inputs = padded_inputs(x_BLC, taps, initial_BSC, wide)
    y = x_BLC.new_zeros(x_BLC.shape, dtype=wide) if bias_C is None else bias_C.to(wide).expand(x_BLC.shape)
    for k in range(taps):
        y = y + weight_CK[:, k].to(wide) * inputs[:, k : k + length]
    return y


def conv_gradients(
    x_BLC: Tensor, weight_CK: Tensor, bias_C: Tensor | None, initial_BSC: Tensor | None, silu: bool, gout_BLC: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of x, weight, bias and the inputs before the first token."""
    y = conv_sums(x_BLC, weight_CK, bias_C, initial_BSC)
    g = gout_BLC.to(y.dtype)
    if silu:
        gate = torch.sigmoid(y)
        g = g * gate * (1 + y * (1 - gate))
    taps, length = weight_CK.shape[1], x_BLC.shape[1]
    inputs = padded_inputs(x_BLC, taps, initial_BSC, y.dtype)
    of_inputs = torch.zeros_like(inputs)
    for k in range(taps):
        of_inputs[:, k : k + length] += weight_CK[:, k].to(y.dtype) * g
    weight = torch.stack([(g * inputs[:, k : k + length]).sum((0, 1)) for k in range(taps)], dim=1)
    return of_inputs[:, taps - 1 :].clone(), weight, g.sum((0, 1)), of_inputs[:, : taps - 1].clone()


def activated(y_BLC: Tensor, silu: bool) -> Tensor:
    return F.silu(y_BLC) if silu else y_BLC
