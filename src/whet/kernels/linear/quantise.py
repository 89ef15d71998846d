"""Quantise weights: to int8 with a scale per output, or to int4 with a scale per output and a factor per group.

The factors are whole numbers from 1 to 15, two-level scales as in QServe (Lin et al., 2024, arXiv:2405.04532). The
product of an int4 and its group's factor is an int8 in units of the output's scale, so a matrix product uses whole
numbers over all inputs.

Shape suffixes: N outputs, K inputs, G groups of 32 inputs.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

GROUP_SIZE = 32
_LARGEST_RATIO = 15
_SHRINKS = (0.92, 0.85)  # of an output's scale: a few clipped weights may cost less than coarse steps for all


@dataclass(frozen=True)
class Int8Weights:
    """Hold int8 weights, w = scale * values, with values in int8 and scales in float32."""

    values_NK: Tensor
    scale_N: Tensor

    def dequantise(self) -> Tensor:
        """Return the weights as float32 [N, K]."""
        return self.values_NK.float() * self.scale_N[:, None]


@dataclass(frozen=True)
class Int4Weights:
    """Hold int4 weights, w = scale * ratio * values: values -8..7 in int8, ratios 1..15 in uint8, float32 scales."""

    values_NK: Tensor
    ratio_NG: Tensor
    scale_N: Tensor

    def dequantise(self) -> Tensor:
        """Return the weights as float32 [N, K]."""
        ratio_NK = self.ratio_NG.repeat_interleave(GROUP_SIZE, dim=1)[:, : self.values_NK.shape[1]]
        return self.values_NK.float() * ratio_NK * self.scale_N[:, None]


def quantise_int8(weight_NK: Tensor) -> Int8Weights:
    """Quantise to int8: symmetric, to the nearest level, with the largest weight of each output at 127."""
    weight_NK = weight_NK.float()
    scale_N = (weight_NK.abs().amax(dim=1) / 127).clamp_min(torch.finfo(torch.float32).tiny)
    return Int8Weights((weight_NK / scale_N[:, None]).round_().to(torch.int8), scale_N)


def quantise_int4(weight_NK: Tensor) -> Int4Weights:
    """Quantise to int4. Of several scales for an output and its groups, those of the least squared error are taken."""
    N, K = weight_NK.shape
    num_groups = -(-K // GROUP_SIZE)
    padded_NK = torch.nn.functional.pad(weight_NK.float(), (0, num_groups * GROUP_SIZE - K))
    weight_NGI = padded_NK.view(N, num_groups, GROUP_SIZE)
    full_N = (weight_NK.float().abs().amax(dim=1) / (7.5 * _LARGEST_RATIO)).clamp_min(torch.finfo(torch.float32).tiny)
    best, best_error_N = _with_scale(weight_NGI, full_N)
    for shrink in _SHRINKS:
        found, error_N = _with_scale(weight_NGI, full_N * shrink)
        better_N = error_N < best_error_N
        best = _Scaled(
            torch.where(better_N[:, None, None], found.values_NGI, best.values_NGI),
            torch.where(better_N[:, None], found.ratio_NG, best.ratio_NG),
            torch.where(better_N, found.scale_N, best.scale_N),
        )
        best_error_N = torch.minimum(error_N, best_error_N)
    return Int4Weights(best.values_NGI.view(N, -1)[:, :K].contiguous(), best.ratio_NG, best.scale_N)


class _Scaled(NamedTuple):
    values_NGI: Tensor
    ratio_NG: Tensor
    scale_N: Tensor


def _with_scale(weight_NGI: Tensor, scale_N: Tensor) -> tuple[_Scaled, Tensor]:
    """Return the best weights for this scale, and the squared error of each output [N]."""
    units_NGI = weight_NGI / scale_N[:, None, None]
    largest_NG = units_NGI.abs().amax(dim=2)
    widest_NG = (largest_NG / 7).ceil().clamp(1, _LARGEST_RATIO)
    best_NGI = torch.zeros_like(units_NGI, dtype=torch.int8)
    ratio_NG = torch.ones_like(widest_NG, dtype=torch.uint8)
    error_NG = torch.full_like(widest_NG, torch.inf)
    for narrower in range(4):
        candidate_NG = (widest_NG - narrower).clamp_min(1)
        values_NGI = (units_NGI / candidate_NG[:, :, None]).round_().clamp_(-8, 7)
        off_NG = (values_NGI * candidate_NG[:, :, None] - units_NGI).square_().sum(dim=2)
        better_NG = off_NG < error_NG
        error_NG = torch.where(better_NG, off_NG, error_NG)
        ratio_NG = torch.where(better_NG, candidate_NG.to(torch.uint8), ratio_NG)
        best_NGI = torch.where(better_NG[:, :, None], values_NGI.to(torch.int8), best_NGI)
    return _Scaled(best_NGI, ratio_NG, scale_N), error_NG.sum(dim=1) * scale_N.square()
