"""Sampling tokens from logits in torch, by the rule of whet.kernels.sample.

In short: of the tokens in order of their logits remain those with at least min_p times the largest probability; of them
the first top_k; of them the first whose probabilities, renormalised, reach top_p. This stands in where the kernel
cannot run, and sorts no more of a row than it must.

Suffixes: R rows, V vocabulary, C the candidates looked at.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from whet.kernels.sample import UNUSABLE

_NUM_CANDIDATES = 256  # sorted first; where they do not settle the row, all are


class Truncation(NamedTuple):
    """What is drawn from, for each row: float32 [R]; top_k int32 [R], 0 for all."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor


def sample_in_torch(logits_RV: Tensor, rule: Truncation, uniform_R: Tensor) -> Tensor:
    """A token for each row: int64 [R], or UNUSABLE. uniform_R: float32 of [0, 1)."""
    ids_R = logits_RV.argmax(dim=1)  # of equal ones the first
    is_usable_R = logits_RV.gather(1, ids_R[:, None])[:, 0].isfinite()  # a NaN is the largest
    ids_R[~is_usable_R] = UNUSABLE
    open_ = torch.nonzero((rule.temperature != 0) & is_usable_R)[:, 0]
    for num_candidates in _widths(logits_RV.shape[1]):
        if not len(open_):
            break
        kept = _keep(logits_RV[open_], _rows(rule, open_), num_candidates)
        target_R = uniform_R[open_].double() * kept.mass
        place_R = (kept.cumulative <= target_R[:, None]).sum(dim=1)
        place_R = torch.minimum(place_R, kept.count - 1)  # rounding may leave the whole sum a hair below the target
        is_found_R = kept.is_known & (place_R < kept.reach)
        ids_R[open_[is_found_R]] = kept.ids.gather(1, place_R.clamp(max=num_candidates - 1)[:, None])[is_found_R, 0]
        open_ = open_[~is_found_R]
    return ids_R


@dataclass(frozen=True)
class _Kept:
    """The first C tokens of each row in order, and what remains of the row by the rule: [R, C] and [R].

    reach: how many of the C surely stand in their place; an equal logit outside may belong before the last of them.
    count, mass: of what remains, in tokens and in weight. is_known: they are right; else more candidates are needed.
    """

    ids: Tensor
    weights: Tensor
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
    return _Kept(ids_RC, weights_RC, cumulative_RC, reach_R, count_R, mass_R, is_known_R)


def _first(logits_RV: Tensor, num_candidates: int) -> tuple[Tensor, Tensor]:
    """Ids of the largest logits in the rule's order [R, C], and how many of them surely stand in their place [R]."""
    if num_candidates == logits_RV.shape[1]:
        ids_RV = logits_RV.argsort(dim=1, descending=True, stable=True)
        return ids_RV, torch.full((len(logits_RV),), num_candidates)
    ids_RC = logits_RV.topk(num_candidates, dim=1).indices.sort(dim=1).values
    values_RC = logits_RV.gather(1, ids_RC)
    order_RC = values_RC.argsort(dim=1, descending=True, stable=True)
    values_RC = values_RC.gather(1, order_RC)
    return ids_RC.gather(1, order_RC), (values_RC > values_RC[:, -1:]).sum(dim=1)


def _at(cumulative_RC: Tensor, count_R: Tensor) -> Tensor:
    """The sum of the first `count_R`; of all, where they are more than the candidates (it is not used then)."""
    return cumulative_RC.gather(1, (count_R - 1).clamp(0, cumulative_RC.shape[1] - 1)[:, None])[:, 0]


def _rows(rule: Truncation, rows: Tensor) -> Truncation:
    return Truncation(*(values[rows] for values in rule))


def _widths(vocab_size: int) -> list[int]:
    return [_NUM_CANDIDATES, vocab_size] if vocab_size > _NUM_CANDIDATES else [vocab_size]
