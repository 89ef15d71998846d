"""Compute rotary positions (Su et al., 2021, arXiv:2104.09864): pairs of a head's numbers rotate with the position.

Shape suffixes: T tokens, N heads, H head width, R rotated numbers of a head.
"""

import math

import torch
from torch import Tensor

from whet.models.decoder.config import DecoderConfig, Rope


def rotate(x_NTH: Tensor, cos_TH: Tensor, sin_TH: Tensor) -> Tensor:
    """Rotate each pair (i, i + R/2) of a head by the angle of its position: [..., N, T, H] -> [..., N, T, H].

    R is the last size of the cosines. A head's numbers from R on pass unchanged.
    """
    num_rotated = cos_TH.shape[-1]
    rotated, rest = x_NTH[..., :num_rotated], x_NTH[..., num_rotated:]
    first, second = rotated.chunk(2, dim=-1)
    rotated = rotated * cos_TH + torch.cat((-second, first), dim=-1) * sin_TH
    return rotated if num_rotated == x_NTH.shape[-1] else torch.cat((rotated, rest), dim=-1)


def cosines_and_sines(inv_freq: Tensor, scale: float, positions_T: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the cosines [..., T, R] and sines [..., T, R] of the rotary angles at positions [..., T].

    Args:
        inv_freq: The radians per position of each pair [R/2].
        scale: The factor of cosines and sines.
    """
    half_TH = positions_T.float()[..., None] * inv_freq
    angles_TH = torch.cat((half_TH, half_TH), dim=-1)
    cos_TH, sin_TH = angles_TH.cos(), angles_TH.sin()
    if scale != 1.0:
        cos_TH, sin_TH = cos_TH * scale, sin_TH * scale
    return cos_TH.to(dtype), sin_TH.to(dtype)


def inverse_frequencies(config: DecoderConfig) -> Tensor:
    """Return the radians per position of each rotary pair, float32 [R/2] on the CPU, by transformers' rules."""
    rope = config.rope_parameters
    # The device is explicit, so that a model built under torch.device("meta") still gets real angles.
    pairs = torch.arange(0, config.rotary_dim, 2, device="cpu").float()
    inv_freq = 1.0 / rope.rope_theta ** (pairs / config.rotary_dim)
    match rope.rope_type:
        case "default":
            return inv_freq
        case "linear":
            return inv_freq / rope.factor
        case "llama3":
            keep = _kept_by_llama3(rope, inv_freq)
        case "yarn":
            keep = _kept_by_yarn(rope, config.rotary_dim)
    return keep * inv_freq + (1 - keep) * inv_freq / rope.factor


def rotary_scale(config: DecoderConfig) -> float:
    """Return the factor of cosines and sines: 1, or for yarn that of the file or of equation 22 in its paper."""
    rope = config.rope_parameters
    if rope.rope_type != "yarn":
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    growth = 0.1 * math.log(max(rope.factor, 1.0))
    if rope.mscale and rope.mscale_all_dim:
        return (rope.mscale * growth + 1.0) / (rope.mscale_all_dim * growth + 1.0)
    return growth + 1.0


def _kept_by_llama3(rope: Rope, inv_freq: Tensor) -> Tensor:
    """Return the kept share of each pair's frequency, [H/2], 0 to 1: 1 where it turns often in the original context."""
    turns = rope.original_max_position_embeddings * inv_freq / (2 * math.pi)
    keep = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    return keep.clamp(0, 1)


def _kept_by_yarn(rope: Rope, head_dim: int) -> Tensor:
    """Return the share of each pair's frequency that yarn keeps, [H/2], 0 to 1.

    It falls linearly from the pair with beta_fast rotations in the original context to the pair with beta_slow.
    """
    low, high = (_pair_with_turns(turns, rope, head_dim) for turns in (rope.beta_fast, rope.beta_slow))
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # a step instead of a ramp
    slowed = (torch.arange(head_dim // 2, device="cpu").float() - low) / (high - low)
    return 1 - slowed.clamp(0, 1)


def _pair_with_turns(turns: float, rope: Rope, head_dim: int) -> float:
    """Return the fractional index of the pair that rotates `turns` times within the original context."""
    radians_per_position = turns * 2 * math.pi / rope.original_max_position_embeddings
    return -head_dim * math.log(radians_per_position) / (2 * math.log(rope.rope_theta))
