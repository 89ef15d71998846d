"""Apply what requests change in the model's logits before a token is chosen, and undo it afterwards.

The order is: logit_bias, no end token before min_tokens, then repetition, frequency and presence penalties. Only tokens
that a request names or has seen are changed, and not the tens of thousands of others in a row. The end tokens of a
request with a structure are left to whet.server.masks.

Source of the penalties: Keskar et al., 2019, arXiv:1909.05858 (repetition, over prompt and output); OpenAI's API
reference (frequency and presence, over the output).

Suffixes: R rows, V vocabulary, N changed places in the flattened logits.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from whet.server.request import Request

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Rows = Sequence[tuple[Request, int]]  # a request, and the number of its drafts before the row's token


class Penalties:
    """Remember from step to step which tokens the requests have seen, and apply their penalties."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def forget_all_but(self, rows: Rows) -> None:
        wanted = {request.id for request, _ in rows}
        self._seen = {request_id: seen for request_id, seen in self._seen.items() if request_id in wanted}

    @contextmanager
    def applied(self, logits_RV: Tensor, rows: Rows) -> Iterator[None]:
        """Change logits, float32 [R, V] and contiguous, in place, and undo it at the end of the block."""
        flat = logits_RV.numpy().reshape(-1)
        undo = self._apply(flat, logits_RV.shape[1], rows)
        try:
            yield
        finally:
            for places_N, old_N in reversed(undo):
                flat[places_N] = old_N

    def _apply(self, flat: Floats, vocab_size: int, rows: Rows) -> list[tuple[Ints, Floats]]:
        """Return the changed places in the flattened logits and their old values, in the order of the changes."""
        undo: list[tuple[Ints, Floats]] = []
        for i, (request, num_drafts) in enumerate(rows):
            bias, ends = request.params.logit_bias, request.stop_ids
            if bias:
                places_N = np.fromiter(bias, np.int64, len(bias)) + i * vocab_size
                undo.append((places_N, flat[places_N]))
                flat[places_N] += np.fromiter(bias.values(), np.float32, len(bias))
            if ends and request.guide is None and request.num_output + num_drafts < request.params.min_tokens:
                places_N = np.fromiter(ends, np.int64, len(ends)) + i * vocab_size
                old_N = flat[places_N]
                undo.append((places_N, old_N))
                flat[places_N] = np.where(old_N < np.inf, np.float32(-np.inf), old_N)  # NaN stays NaN, to be detected
        penalised = [(i, row) for i, row in enumerate(rows) if row[0].params.is_penalised]
        if penalised:
            undo.append(self._penalise(flat, vocab_size, penalised))
        return undo

    def _penalise(
        self, flat: Floats, vocab_size: int, rows: Sequence[tuple[int, tuple[Request, int]]]
    ) -> tuple[Ints, Floats]:
        """Apply all penalties in one operation (one for each row is much slower). Return the places and old values."""
        seen = [self._tokens(request).with_drafts(request.drafts[:num_drafts]) for _, (request, num_drafts) in rows]
        sizes = [len(ids) for ids, _ in seen]
        params = [request.params for _, (request, _) in rows]
        of_row = np.array([(p.repetition_penalty, p.frequency_penalty, p.presence_penalty) for p in params], np.float32)
        repetition_N, frequency_N, presence_N = np.repeat(of_row, sizes, axis=0).T
        times_N = np.concatenate([times for _, times in seen])
        places_N = np.concatenate([ids for ids, _ in seen])
        places_N += np.repeat(np.array([i * vocab_size for i, _ in rows], np.int64), sizes)
        old_N = flat[places_N]
        new_N = np.where(old_N > 0, old_N / repetition_N, old_N * repetition_N)
        flat[places_N] = new_N - (frequency_N * times_N + presence_N * (times_N > 0))
        return places_N, old_N

    def _tokens(self, request: Request) -> "_Seen":
        seen = self._seen.get(request.id)
        if seen is None or seen.request is not request:
            seen = self._seen[request.id] = _Seen(request)
        seen.read()
        return seen


class _Seen:
    """Hold the different tokens of one request, and how often each occurs in its output."""

    def __init__(self, request: Request) -> None:
        self.request = request
        tokens = np.array(request.token_ids[request.num_before :], np.int64)
        ids = np.unique(tokens)
        self._num_read = len(request.token_ids)
        self._num_ids = len(ids)
        self._place_of = {token_id: place for place, token_id in enumerate(ids.tolist())}
        self._ids: Ints = np.concatenate([ids, np.zeros_like(ids)])  # the second half is room for new tokens
        self._times: Floats = np.zeros(len(self._ids), np.float32)
        np.add.at(self._times, np.searchsorted(ids, tokens[request.num_prompt - request.num_before :]), np.float32(1))

    def read(self) -> None:
        """Count the output tokens that are new since the last call."""
        for token_id in self.request.token_ids[self._num_read :]:
            place = self._place_of.setdefault(token_id, self._num_ids)
            if place == self._num_ids:
                self._add(token_id)
            self._times[place] += 1
        self._num_read = len(self.request.token_ids)

    def with_drafts(self, drafts: Sequence[int]) -> tuple[Ints, Floats]:
        """Return the tokens and their counts, with these drafts as a part of the output."""
        ids, times = self._ids[: self._num_ids], self._times[: self._num_ids]
        if not drafts:
            return ids, times
        new = sorted(set(drafts) - self._place_of.keys())
        place_of = self._place_of | {token_id: self._num_ids + i for i, token_id in enumerate(new)}
        times = np.concatenate([times, np.zeros(len(new), np.float32)])
        for token_id in drafts:
            times[place_of[token_id]] += 1
        return np.concatenate([ids, np.array(new, np.int64)]), times

    def _add(self, token_id: int) -> None:
        if self._num_ids == len(self._ids):
            self._ids = np.resize(self._ids, 2 * self._num_ids + 16)
            self._times = np.concatenate([self._times, np.zeros(len(self._ids) - self._num_ids, np.float32)])
        self._ids[self._num_ids] = token_id
        self._num_ids += 1
