"""Compute which tokens the grammars of a step's requests allow, beside the model's step.

A mask is a bit for each token of the vocabulary, in words of 32 bits. Only rows of requests with a structure have one.

Suffixes: R rows of the step, M rows with a mask, W words of a mask, V vocabulary.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from whet.measure.cores import allowed_cores
from whet.server.request import Request

Words = NDArray[np.uint32]
Rows = Sequence[tuple[Request, int]]  # a request, and how many of its drafts lie before the row's token

_BITS = 32
_ALL = np.uint32(2**32 - 1)


@dataclass(frozen=True)
class Masks:
    """Keep the allowed tokens of a step, until the masks of the next step are computed.

    Attributes:
        words: uint32 [M, W]. Bits beyond the vocabulary are 0.
        of_row: int32 [R]. The place of each row's mask in `words`; -1 for a row that may choose any token.
    """

    words: Words
    of_row: NDArray[np.int32]

    def is_empty(self, row: int) -> bool:
        """Return whether a row has a mask that allows no token, since its output is complete."""
        place = int(self.of_row[row])
        return place >= 0 and not self.words[place].any()

    def pointers(self) -> tuple[int, int, int]:
        """Return what the kernel takes: the masks, the words of each, and the place of each row's mask."""
        return self.words.ctypes.data, self.words.shape[1], self.of_row.ctypes.data

    def applied(self, logits_RV: Tensor, first: int = 0) -> Tensor:
        """Return a copy of the logits with minus infinity for tokens that are not allowed. NaN and infinity stay.

        They may be those of rows side by side, of which the first is row `first` of the step.
        """
        logits_RV = logits_RV.clone()
        for i, place in enumerate(self.of_row[first : first + len(logits_RV)].tolist()):
            if place >= 0:
                bits = np.unpackbits(self.words[place].view(np.uint8), count=logits_RV.shape[1], bitorder="little")
                row_V = logits_RV[i]
                row_V[torch.from_numpy(bits == 0) & (row_V < torch.inf)] = -torch.inf
        return logits_RV


Masking = Callable[[], Masks | None]  # waits for the masks; None where no row has one


class MaskFiller:
    """Compute the masks of one step after another.

    `begin` starts the work, and the function that it returns gives the result. Nothing may touch the requests' guides
    in between. Where the model leaves a core free, a thread of its own computes beside the model's step; the thread
    ends with this object. Where the model's threads take all cores, one more thread delays the step by more time than
    the masks take, so they are computed after the model. `is_beside` decides in place of the cores and threads.
    """

    def __init__(self, vocab_size: int, *, is_beside: bool | None = None) -> None:
        self._vocab_size = vocab_size
        self._is_beside = is_beside
        self._thread: ThreadPoolExecutor | None = None
        self._executor: Any = None  # of llguidance, which has threads of its own
        self._rows: Rows = ()
        self._guided: list[int] = []
        self._of_row = np.empty(0, np.int32)
        self._words = np.empty((0, vocab_size // _BITS + 1), np.uint32)  # with a bit for the end

    def begin(self, rows: Rows) -> Masking:
        """Start to compute the masks of a step.

        `rows` are those of the step that choose tokens. The rows of one request stand side by side. Given the very list
        of the step before, this does not search it again.
        """
        if rows is not self._rows:
            self._rows = rows
            self._guided = [i for i, (request, _) in enumerate(rows) if request.guide is not None]
            self._of_row = np.full(len(rows), -1, np.int32)
            self._of_row[self._guided] = np.arange(len(self._guided), dtype=np.int32)
        if not self._guided:
            return lambda: None
        if self._is_beside is None:
            self._is_beside = torch.get_num_threads() < len(allowed_cores())
        if not self._is_beside:
            return partial(self._fill, rows, self._guided)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="whet-masks")
        return self._thread.submit(self._fill, rows, self._guided).result

    def _fill(self, rows: Rows, guided: list[int]) -> Masks:
        if len(self._words) < len(guided):
            self._words = np.empty((len(guided), self._words.shape[1]), np.uint32)
        words = self._words[: len(guided)]
        single, drafted = [], []
        for place, i in enumerate(guided):
            request, num_drafts = rows[i]
            if num_drafts or request.guide is None:
                continue  # its first row is asked for all of them
            if request.drafts:
                drafted.append((request.guide.matcher, place, request.drafts))
            else:
                single.append((request.guide.matcher, place))
        self._compute(words, single, drafted)
        may_end = _take_bit(words, self._vocab_size)
        for place, i in enumerate(guided):
            request, num_drafts = rows[i]
            if request.guide is not None and request.guide.has_failed():
                words[place] = 0  # the request ends with the error
            else:
                _mark_ends(words[place], request, num_drafts, may_end=may_end[place])
        return Masks(words, self._of_row)

    def _compute(self, words: Words, single: list[tuple[Any, int]], drafted: list[tuple[Any, int, list[int]]]) -> None:
        """Have llguidance write the masks: of rows without drafts, and of requests with drafts."""
        begin, row_bytes = words.ctypes.data, words.strides[0]
        if not self._is_beside:
            for matcher, place in single:
                matcher.unsafe_compute_mask_ptr(begin + place * row_bytes, row_bytes)
            single = []
        if not single and not drafted:
            return
        if self._executor is None:
            import llguidance

            self._executor = llguidance.LLExecutor()
        if single:
            self._executor.unsafe_compute_mask_ptr(single, begin, row_bytes, len(words))
        if drafted:
            for _, place, drafts in drafted:
                words[place : place + len(drafts) + 1] = _ALL  # what follows a draft that is not allowed stays so
            self._executor.unsafe_compute_mask_ptr_with_draft_token(drafted, begin, row_bytes, len(words))


def _take_bit(words: Words, number: int) -> list[bool]:
    """Clear the last word of each mask from one of its bits on. Returns where that bit was set."""
    last, bit = words[:, number // _BITS], number % _BITS
    was_set = [bool(word >> bit & 1) for word in last.tolist()]
    last &= np.uint32((1 << bit) - 1)
    return was_set


def _mark_ends(mask: Words, request: Request, num_drafts: int, *, may_end: bool) -> None:
    """Allow the tokens that end the request where its grammar may end.

    Before min_tokens they are forbidden, even those that the grammar takes as text, unless nothing else is allowed.
    """
    if request.num_output + num_drafts >= request.params.min_tokens:
        if may_end:
            for token_id in request.stop_ids:
                mask[token_id // _BITS] |= np.uint32(1 << token_id % _BITS)
        return
    before = mask.copy()
    for token_id in request.stop_ids:
        mask[token_id // _BITS] &= np.uint32(~(1 << token_id % _BITS) & 0xFFFFFFFF)
    if not mask.any():
        mask[:] = before
