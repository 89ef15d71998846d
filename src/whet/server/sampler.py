"""From logits to tokens, for all rows of a step at once.

A row is a request and how many of its drafts lie before the token that the row chooses. Before drawing, in this order:
logit_bias, no end before min_tokens, repetition, frequency and presence penalties. Rows are processed on a copy; the
model's logits stay as they are.

Source of the penalties: Keskar et al., 2019, arXiv:1909.05858 (repetition, over prompt and output); OpenAI's API
reference (frequency and presence, over the output).

Suffixes: R rows, V vocabulary.
"""

import ctypes
import functools
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from whet.kernels.dispatch import kernels_for, pointer
from whet.kernels.sample import UNUSABLE
from whet.server import randomness
from whet.server.draw import Truncation, distribution, draw
from whet.server.request import Request

__all__ = ["UNUSABLE", "Row", "probabilities", "sample", "uniforms"]


class Row(NamedTuple):
    """The token of `request` after its tokens and the first `num_drafts` of its drafts."""

    request: Request
    num_drafts: int = 0


def sample(logits_RV: Tensor, rows: Sequence[Row]) -> NDArray[np.int64]:
    """A token for each row: int64 [R]; UNUSABLE where the model gave no numbers. logits_RV: float32."""
    if all(row.request.is_plain for row in rows):
        return _choose(logits_RV, *_greedy(len(rows)))
    ids_R = _choose(logits_RV, _truncation(rows), torch.from_numpy(uniforms(rows, randomness.SAMPLE)))
    changed = [i for i, row in enumerate(rows) if _is_changed(row.request) and ids_R[i] != UNUSABLE]
    if changed:  # few as a rule: copying them, and choosing again, costs less than copying all
        some = [rows[i] for i in changed]
        uniform_R = torch.from_numpy(uniforms(some, randomness.SAMPLE))
        ids_R[changed] = _choose(_processed(logits_RV[changed], some), _truncation(some), uniform_R)
    return ids_R


def probabilities(logits_RV: Tensor, rows: Sequence[Row]) -> Tensor:
    """The distributions that the rows' tokens are drawn from: float64 [R, V]."""
    return distribution(_processed(logits_RV.clone(), rows), _truncation(rows))


def uniforms(rows: Sequence[Row], purpose: int) -> NDArray[np.float32]:
    """A random number for each row's token."""
    seeds = np.array([row.request.seed for row in rows], np.uint64)
    indices = np.array([row.request.num_output + row.num_drafts for row in rows], np.uint64)
    return randomness.uniforms(seeds, indices, purpose)


def _choose(logits_RV: Tensor, rule: Truncation, uniform_R: Tensor) -> NDArray[np.int64]:
    """By the kernel, on the threads that the model runs on: waking torch's own, which then spin, would slow it down.

    Not through the operator whet::sample, whose first call loads a second's worth of torch.
    """
    library = kernels_for(logits_RV)
    if library is None:
        return draw(logits_RV, rule, uniform_R).numpy()
    logits_RV = logits_RV.contiguous()
    ids_R = np.empty(len(logits_RV), np.int64)
    columns = [pointer(column) for column in (*rule, uniform_R)]
    library.functions.whet_sample(
        pointer(logits_RV), len(ids_R), logits_RV.shape[1], *columns, ids_R.ctypes.data_as(ctypes.c_void_p)
    )
    return ids_R


@functools.lru_cache(maxsize=1024)
def _greedy(num_rows: int) -> tuple[Truncation, Tensor]:
    """The rule that takes the most probable token, and random numbers that it does not look at."""
    zeros_R, ones_R = torch.zeros(num_rows), torch.ones(num_rows)
    return Truncation(zeros_R, torch.zeros(num_rows, dtype=torch.int32), ones_R, zeros_R), zeros_R


def _truncation(rows: Sequence[Row]) -> Truncation:
    params = [row.request.params for row in rows]
    return Truncation(
        torch.tensor([p.temperature for p in params], dtype=torch.float32),
        torch.tensor([max(p.top_k, 0) for p in params], dtype=torch.int32),
        torch.tensor([p.top_p for p in params], dtype=torch.float32),
        torch.tensor([p.min_p for p in params], dtype=torch.float32),
    )


def _processed(logits_RV: Tensor, rows: Sequence[Row]) -> Tensor:
    """The logits with biases and penalties, changed in place."""
    for logits_V, row in zip(logits_RV, rows, strict=True):
        if _is_changed(row.request):
            _process(logits_V.numpy(), row)
    return logits_RV


def _is_changed(request: Request) -> bool:
    params = request.params
    return bool(params.logit_bias or params.min_tokens or request.counts is not None)


def _process(logits_V: NDArray[np.float32], row: Row) -> None:
    """Change one row's logits in place."""
    request, params = row.request, row.request.params
    for token_id, bias in params.logit_bias.items():
        logits_V[token_id] += bias
    if request.num_output + row.num_drafts < params.min_tokens:
        logits_V[list(request.stop_ids)] = -np.inf
    if request.counts is None:
        return
    counts: Counter[int] = request.counts
    drafts = request.drafts[: row.num_drafts]
    if drafts:
        counts = counts + Counter(drafts)
    if params.repetition_penalty != 1:
        seen = request.seen.union(drafts)
        ids = np.fromiter(seen, np.int64, len(seen))
        old, penalty = logits_V[ids], params.repetition_penalty
        logits_V[ids] = np.where(old > 0, old / penalty, old * penalty)
    if counts and (params.frequency_penalty or params.presence_penalty):
        ids = np.fromiter(counts.keys(), np.int64, len(counts))
        times = np.fromiter(counts.values(), np.float32, len(counts))
        logits_V[ids] -= params.frequency_penalty * times + params.presence_penalty
