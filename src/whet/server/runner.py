"""Turn a plan into the flat arrays that a model takes. Their buffers are allocated once."""

from typing import NamedTuple

import numpy as np

from whet.models.step import Ints, StepBatch
from whet.server.blocks import Blocks
from whet.server.request import Request
from whet.server.sampler import Row
from whet.server.scheduler import Plan


class PromptRows(NamedTuple):
    """Say which rows of logits predict a prompt's tokens: `first` predicts the one at `position`; `end` is excluded."""

    request: Request
    position: int
    first: int
    end: int


class Work(NamedTuple):
    """Hold a step: the model's input, and the purpose of each row of its logits.

    The samples of one request are next to each other. `sample_rows` has the row of the logits for each sample.
    """

    batch: StepBatch
    samples: list[Row]
    sample_rows: list[int]
    prompts: list[PromptRows]


class Runner:
    """Build steps over the blocks of one model. The result of `build` is valid until the next call."""

    def __init__(self, blocks: Blocks, max_batch_tokens: int) -> None:
        self._blocks = blocks
        self._token_ids = np.zeros(max_batch_tokens, np.int32)
        self._positions = np.zeros(max_batch_tokens, np.int32)
        self._query_start = np.zeros(blocks.num_rows + 1, np.int32)
        self._context_len = np.zeros(blocks.num_rows, np.int32)
        self._settled_len = np.zeros(blocks.num_rows, np.int32)
        self._state_rows = np.zeros(blocks.num_rows, np.int32)
        self._ascending = np.arange(blocks.max_len + 1, dtype=np.int32)
        self._requests: list[Request] = []  # the last step with one token for each request, and its samples
        self._samples: list[Row] = []

    def build(self, plan: Plan, *, only_last: bool = False) -> Work:
        """Build a plan's step. With `only_last`, as drafting needs, a sequence has one row of logits despite drafts."""
        requests = plan.requests
        num_seqs = len(requests)
        starts = [request.num_computed for request in requests]
        prompts: list[PromptRows] = []
        if plan.total_tokens == num_seqs and [len(request.token_ids) - 1 for request in requests] == starts:
            if requests != self._requests:
                self._requests, self._samples = requests, [Row(request) for request in requests]
            batch = self._batch_of_ones(requests, starts)
            return Work(batch, self._samples, list(range(num_seqs)), prompts)
        samples: list[Row] = []
        sample_rows: list[int] = []
        wanted: list[int] = []
        offset = 0
        for request, start, count in zip(requests, starts, plan.num_tokens, strict=True):
            self._enter(request, start, count, offset)
            _want_prompt(request, start, count, offset, wanted, prompts)
            _want_samples(request, start, count, offset, only_last, wanted, samples, sample_rows)
            offset += count
        query_start, context_len = self._query_start[: num_seqs + 1], self._context_len[:num_seqs]
        np.cumsum(plan.num_tokens, out=query_start[1:])
        context_len[:] = starts
        context_len += query_start[1:] - query_start[:-1]
        known = self._settled_len[:num_seqs]
        known[:] = [len(request.token_ids) for request in requests]
        np.minimum(known, context_len, out=known)
        batch = self._batch(requests, offset, query_start, known, np.array(wanted, np.int32))
        return Work(batch, samples, sample_rows, prompts)

    def _batch_of_ones(self, requests: list[Request], starts: list[int]) -> StepBatch:
        """Return the input of a step with one token for each request, as in most steps."""
        num_seqs = len(requests)
        self._token_ids[:num_seqs] = [request.token_ids[-1] for request in requests]
        self._positions[:num_seqs] = starts
        np.add(self._positions[:num_seqs], 1, out=self._context_len[:num_seqs])
        ascending = self._ascending
        return self._batch(
            requests, num_seqs, ascending[: num_seqs + 1], self._context_len[:num_seqs], ascending[:num_seqs]
        )

    def _enter(self, request: Request, start: int, count: int, offset: int) -> None:
        """Write the tokens and positions of one sequence into the buffers."""
        num_known, end = len(request.token_ids), start + count
        token_ids = request.token_ids[start:end]
        if end > num_known:
            token_ids = token_ids + request.drafts[max(start - num_known, 0) : end - num_known]
        self._token_ids[offset : offset + count] = token_ids
        self._positions[offset : offset + count] = range(start, end)

    def _batch(
        self, requests: list[Request], num_tokens: int, query_start: Ints, settled_len: Ints, logit_rows: Ints
    ) -> StepBatch:
        num_seqs = len(requests)
        state_rows = self._state_rows[:num_seqs]
        state_rows[:] = [request.row for request in requests]
        width = max([len(request.blocks) for request in requests])
        return StepBatch(
            token_ids=self._token_ids[:num_tokens],
            positions=self._positions[:num_tokens],
            query_start=query_start,
            context_len=self._context_len[:num_seqs],
            settled_len=settled_len,
            block_tables=self._blocks.tables[state_rows, :width],
            state_rows=state_rows,
            logit_rows=logit_rows,
        )


def _want_prompt(
    request: Request, start: int, count: int, offset: int, wanted: list[int], prompts: list[PromptRows]
) -> None:
    """Add the rows of logits that predict prompt tokens whose log-probabilities are still missing."""
    if request.prompt_logprobs is None:
        return
    position = max(start + 1, len(request.prompt_logprobs))
    num_rows = min(start + count, request.num_prompt - 1) + 1 - position
    if num_rows > 0:
        prompts.append(PromptRows(request, position, len(wanted), len(wanted) + num_rows))
        first = offset + position - 1 - start
        wanted.extend(range(first, first + num_rows))


def _want_samples(
    request: Request,
    start: int,
    count: int,
    offset: int,
    only_last: bool,
    wanted: list[int],
    samples: list[Row],
    sample_rows: list[int],
) -> None:
    """Add the rows of logits after the last token and after each draft, if the step reaches them."""
    num_drafts = len(request.drafts)
    if start + count < len(request.token_ids) + num_drafts:
        return  # not the last chunk of the prompt: the token that follows is known already
    for num_before in (num_drafts,) if only_last else range(num_drafts + 1):
        samples.append(Row(request, num_before))
        sample_rows.append(len(wanted))
        wanted.append(offset + count - 1 - num_drafts + num_before)
