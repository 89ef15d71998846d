"""Rotary positions (Su et al., 2021, arXiv:2104.09864): a pair of a head's numbers turns with the token's position.

Shape suffixes: T tokens, N heads, H head width.
"""

import math

import torch
from torch import Tensor

from whet.models.decoder.config import DecoderConfig, Rope


def rotate(x_NTH: Tensor, cos_TH: Tensor, sin_TH: Tensor) -> Tensor:
    """Turn each pair (i, i + H/2) of a head by its position's angle: [..., N, T, H] -> [..., N, T, H]."""
    first, second = x_NTH.chunk(2, dim=-1)
    return x_NTH * cos_TH + torch.cat((-second, first), dim=-1) * sin_TH


def inverse_frequencies(config: DecoderConfig) -> Tensor:
    """Radians per position of each rotary pair, fp32 [H/2] on the CPU, by transformers' rules for each type."""
    rope = config.rope_parameters
    # The device is named, so that a model built without memory (torch.device("meta")) has its angles all the same.
    pairs = torch.arange(0, config.head_dim, 2, device="cpu").float()
    inv_freq = 1.0 / rope.rope_theta ** (pairs / config.head_dim)
    match rope.rope_type:
        case "default":
            return inv_freq
        case "linear":
            return inv_freq / rope.factor
        case "llama3":
            keep = _kept_by_llama3(rope, inv_freq)
        case "yarn":
            keep = _kept_by_yarn(rope, config.head_dim)
    return keep * inv_freq + (1 - keep) * inv_freq / rope.factor


def rotary_scale(config: DecoderConfig) -> float:
    """What cosines and sines are multiplied by: 1 for all types but yarn (its equation 22, or what the file says)."""
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
    """The share of each pair's speed that stays, [H/2]: all for pairs that turn often within the original context."""
    turns = rope.original_max_position_embeddings * inv_freq / (2 * math.pi)
    keep = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    return keep.clamp(0, 1)


def _kept_by_yarn(rope: Rope, head_dim: int) -> Tensor:
    """The same for yarn: a ramp over the pairs' numbers, from beta_fast turns in the original context to beta_slow."""
    low, high = (_pair_with_turns(turns, rope, head_dim) for turns in (rope.beta_fast, rope.beta_slow))
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # a step instead of a ramp
    slowed = (torch.arange(head_dim // 2, device="cpu").float() - low) / (high - low)
    return 1 - slowed.clamp(0, 1)


def _pair_with_turns(turns: float, rope: Rope, head_dim: int) -> float:
    """The number of the pair, as a fraction, that turns so often within the original context."""
    radians_per_position = turns * 2 * math.pi / rope.original_max_position_embeddings
    return -head_dim * math.log(radians_per_position) / (2 * math.log(rope.rope_theta))
