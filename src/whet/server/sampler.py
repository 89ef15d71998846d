"""Choose tokens from logits, for all rows of a step at once.

Suffixes: R rows, V vocabulary.
"""

import ctypes
import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from whet.kernels.dispatch import kernels_for, pointer
from whet.kernels.sample import UNUSABLE
from whet.server import randomness
from whet.server.masks import Masks
from whet.server.penalties import Penalties
from whet.server.request import Request
from whet.server.torch_sampler import Truncation, sample_in_torch

__all__ = ["UNUSABLE", "Row", "Sampler", "sample"]


class Row(NamedTuple):
    """Stand for the token of `request` that follows its tokens and the first `num_drafts` of its drafts."""

    request: Request
    num_drafts: int = 0


class Sampler:
    """Choose tokens step by step. If the list of rows is the same object as in the last step, reuse its analysis."""

    def __init__(self) -> None:
        self._rows: Sequence[Row] = ()
        self._is_plain = True
        self._is_changed = False
        self._rule: Truncation
        self._seeds: NDArray[np.uint64]
        self._penalties = Penalties()

    def sample(self, logits_RV: Tensor, rows: Sequence[Row], masks: Masks | None = None) -> NDArray[np.int64]:
        """Choose a token for each row of the logits, float32 [R, V].

        Returns:
            The tokens, int64 [R]. UNUSABLE stands where the logits are NaN or infinite, or a mask allows no token.
        """
        if rows is not self._rows:
            self._look_at(rows)
        if self._is_plain:
            return _choose(logits_RV, *_greedy(len(rows)), masks)
        uniform_R = torch.from_numpy(randomness.uniforms(self._seeds, _indices(rows)))
        if not self._is_changed:
            return _choose(logits_RV, self._rule, uniform_R, masks)
        logits_RV = logits_RV.contiguous()
        with self._penalties.applied(logits_RV, rows):
            return _choose(logits_RV, self._rule, uniform_R, masks)

    def _look_at(self, rows: Sequence[Row]) -> None:
        """Compute what depends only on the list of rows."""
        self._rows = rows
        self._is_plain = all(row.request.is_plain for row in rows)
        if self._is_plain:
            return
        self._rule, self._seeds = _truncation(rows), np.array([row.request.seed for row in rows], np.uint64)
        self._is_changed = any(_is_changed(row.request) for row in rows)
        self._penalties.forget_all_but(rows)


def sample(logits_RV: Tensor, rows: Sequence[Row]) -> NDArray[np.int64]:
    """Choose a token for each row once. See Sampler.sample."""
    return Sampler().sample(logits_RV, rows)


def _indices(rows: Sequence[Row]) -> NDArray[np.uint64]:
    """Return the place of each row's token in its output."""
    return np.array([request.num_output + num_drafts for request, num_drafts in rows], np.uint64)


def _choose(logits_RV: Tensor, rule: Truncation, uniform_R: Tensor, masks: Masks | None) -> NDArray[np.int64]:
    """Choose with the kernel, on the threads that also run the model.

    torch's own threads would go on spinning after their work, and slow the model down. The operator whet::sample is not
    used because its first call imports parts of torch, which takes a second.
    """
    library = kernels_for(logits_RV)
    if library is None:
        logits_RV = logits_RV if masks is None else masks.applied(logits_RV)
        return sample_in_torch(logits_RV, rule, uniform_R).numpy()
    logits_RV = logits_RV.contiguous()
    ids_R = np.empty(len(logits_RV), np.int64)
    columns = [pointer(column) for column in (*rule, uniform_R)]
    library.functions.whet_sample(
        pointer(logits_RV),
        len(ids_R),
        logits_RV.shape[1],
        *columns,
        *((None, 0, None) if masks is None else masks.pointers()),
        ids_R.ctypes.data_as(ctypes.c_void_p),
    )
    return ids_R


@functools.lru_cache(maxsize=1024)
def _greedy(num_rows: int) -> tuple[Truncation, Tensor]:
    """Return the rule that takes the most probable token, and random numbers, which it ignores."""
    zeros_R, ones_R = torch.zeros(num_rows), torch.ones(num_rows)
    return Truncation(zeros_R, torch.zeros(num_rows, dtype=torch.int32), ones_R, zeros_R), zeros_R


def _truncation(rows: Sequence[Row]) -> Truncation:
    params = [row.request.params for row in rows]
    return Truncation(
        torch.tensor([0.0 if p.is_greedy else p.temperature for p in params], dtype=torch.float32),
        torch.tensor([max(p.top_k, 0) for p in params], dtype=torch.int32),
        torch.tensor([p.top_p for p in params], dtype=torch.float32),
        torch.tensor([p.min_p for p in params], dtype=torch.float32),
    )


def _is_changed(request: Request) -> bool:
    """Return whether the request changes the logits before its tokens are chosen."""
    params = request.params
    return bool(params.logit_bias or params.min_tokens or params.is_penalised)
