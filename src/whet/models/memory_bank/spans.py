"""Cut a step at the ends of spans, after which a bank with adaptive compression changes its slots."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from whet.models.step import Ints, StepBatch


class PartInSpans(NamedTuple):
    """Hold tokens of a step of which no sequence has any beyond the end of a span.

    Attributes:
        batch: The tokens as a step of their own.
        logit_places: Which of the whole step's rows of logits they give, in order.
        ended_rows: The rows of the sequences whose span ends with them.
    """

    batch: StepBatch
    logit_places: Ints
    ended_rows: list[int]


def in_spans(batch: StepBatch, span: int) -> Iterator[PartInSpans]:
    """Yield the tokens of a step without drafts in parts, each sequence's up to the end of its span of tokens."""
    at, ends = batch.query_start[:-1].copy(), batch.query_start[1:]
    while (left := ends - at).any():
        position = batch.positions[np.minimum(at, len(batch.positions) - 1)]
        count = np.where(left > 0, np.minimum(left, span - position % span), 0)
        chosen = np.concatenate([np.arange(first, first + num) for first, num in zip(at, count, strict=True)])
        wanted = np.isin(batch.logit_rows, chosen)
        context_len = np.where(count > 0, position + count, 0).astype(np.int32)
        part = StepBatch(
            token_ids=batch.token_ids[chosen],
            positions=batch.positions[chosen],
            query_start=np.concatenate([[0], np.cumsum(count)]).astype(np.int32),
            context_len=context_len,
            settled_len=context_len,
            block_tables=batch.block_tables,
            state_rows=batch.state_rows,
            logit_rows=np.searchsorted(chosen, batch.logit_rows[wanted]).astype(np.int32),
        )
        ended = (count > 0) & (context_len % span == 0)
        yield PartInSpans(part, np.flatnonzero(wanted).astype(np.int32), batch.state_rows[ended].tolist())
        at = at + count
