"""Sample tokens from logits in torch, by the rule of whet.kernels.sample.

In short, tokens are sorted by their logits. Those with at least min_p times the largest probability remain. Of these,
the first top_k remain. Of these, the first whose renormalised probabilities reach top_p remain. This module is used
where the kernel cannot run. It sorts no more of a row than necessary.

Suffixes: R rows, V vocabulary, C the candidates looked at.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from whet.kernels.sample import UNUSABLE

_NUM_CANDIDATES = 256  # tokens sorted first; if they do not decide a row, all its tokens are sorted


class Truncation(NamedTuple):
    """Hold the sampling rule of each row: float32 [R], and int32 [R] for top_k, where 0 stands for all tokens."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor


def sample_in_torch(logits_RV: Tensor, rule: Truncation, uniform_R: Tensor) -> Tensor:
    """Choose a token for each row of the logits, float32 [R, V], by random numbers from [0, 1), float32 [R].

    Returns:
        The tokens, int64 [R]. UNUSABLE stands where the logits are NaN or infinite.
    """
    ids_R = logits_RV.argmax(dim=1)  # the first of equal logits
    is_usable_R = logits_RV.gather(1, ids_R[:, None])[:, 0].isfinite()  # argmax takes NaN for the largest value
    ids_R[~is_usable_R] = UNUSABLE
    open_ = torch.nonzero((rule.temperature != 0) & is_usable_R)[:, 0]
    vocab_size = logits_RV.shape[1]
    for num_candidates in sorted({min(_NUM_CANDIDATES, vocab_size), vocab_size}):
        if not len(open_):
            break
        kept = _keep(logits_RV[open_], _rows(rule, open_), num_candidates)
        target_R = uniform_R[open_].double() * kept.mass
        place_R = (kept.cumulative <= target_R[:, None]).sum(dim=1)
        place_R = torch.minimum(place_R, kept.count - 1)  # through rounding, the sum may stay just below the target
        is_found_R = kept.is_known & (place_R < kept.reach)
        ids_R[open_[is_found_R]] = kept.ids.gather(1, place_R.clamp(max=num_candidates - 1)[:, None])[is_found_R, 0]
        open_ = open_[~is_found_R]
    return ids_R


@dataclass(frozen=True)
class _Kept:
    """Hold the first C tokens of each row in their order, and how many tokens of the row remain by the rule.

    Attributes:
        ids: The tokens [R, C].
        cumulative: The running sums of their weights, which are probabilities relative to the largest one [R, C].
        reach: How many of the C tokens surely have the right place [R]. Equal logits outside may precede the others.
        count: How many tokens remain [R].
        mass: The sum of their weights [R].
        is_known: Whether count and mass are right [R]; if not, more candidates are needed.
    """

    ids: Tensor
    cumulative: Tensor
    reach: Tensor
    count: Tensor
    mass: Tensor
    is_known: Tensor


def _keep(logits_RV: Tensor, rule: Truncation, num_candidates: int) -> _Kept:
    scaled_RV = (logits_RV - logits_RV.amax(dim=1, keepdim=True)) / rule.temperature[:, None]
    weights_RV = scaled_RV.exp()
    weights_RV = weights_RV * (weights_RV >= rule.min_p[:, None])
    ids_RC, reach_R = _first(logits_RV, num_candidates)
    weights_RC = weights_RV.gather(1, ids_RC).double()
    cumulative_RC = weights_RC.cumsum(dim=1)

    count_R = (weights_RV > 0).sum(dim=1)
    mass_R = weights_RV.sum(dim=1, dtype=torch.float64)
    is_cut_R = (rule.top_k > 0) & (rule.top_k < count_R)
    is_known_R = ~is_cut_R | (rule.top_k <= reach_R)
    count_R = torch.where(is_cut_R, rule.top_k, count_R)
    mass_R = torch.where(is_cut_R, _at(cumulative_RC, count_R), mass_R)

    is_cut_R = rule.top_p < 1
    wanted_R = rule.top_p.double() * mass_R
    first_R = (cumulative_RC < wanted_R[:, None]).sum(dim=1) + 1
    is_known_R &= ~is_cut_R | (first_R <= reach_R)
    count_R = torch.where(is_cut_R, torch.minimum(first_R, count_R), count_R)
    mass_R = torch.where(is_cut_R, _at(cumulative_RC, count_R), mass_R)
    return _Kept(ids_RC, cumulative_RC, reach_R, count_R, mass_R, is_known_R)


def _first(logits_RV: Tensor, num_candidates: int) -> tuple[Tensor, Tensor]:
    """Return the tokens of the largest logits in the rule's order [R, C], and how many surely have their place [R]."""
    if num_candidates == logits_RV.shape[1]:
        ids_RV = logits_RV.argsort(dim=1, descending=True, stable=True)
        return ids_RV, torch.full((len(logits_RV),), num_candidates)
    ids_RC = logits_RV.topk(num_candidates, dim=1).indices.sort(dim=1).values
    values_RC = logits_RV.gather(1, ids_RC)
    order_RC = values_RC.argsort(dim=1, descending=True, stable=True)
    values_RC = values_RC.gather(1, order_RC)
    return ids_RC.gather(1, order_RC), (values_RC > values_RC[:, -1:]).sum(dim=1)


def _at(cumulative_RC: Tensor, count_R: Tensor) -> Tensor:
    """Return the sum of the first `count_R` weights. If these are more than the candidates, the sum is not used."""
    return cumulative_RC.gather(1, (count_R - 1).clamp(0, cumulative_RC.shape[1] - 1)[:, None])[:, 0]


def _rows(rule: Truncation, rows: Tensor) -> Truncation:
    return Truncation(*(values[rows] for values in rule))
