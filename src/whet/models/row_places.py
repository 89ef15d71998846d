"""Note how far the sequence of each row of states has been read and settled."""

from typing import NamedTuple

import numpy as np

from whet.errors import InputsError
from whet.models.step import Allocation, Ints, StepBatch


class Reads(NamedTuple):
    """Say what a step reads of each sequence that has tokens in it, int32 [S] each.

    Attributes:
        first: The place of the first token in the step.
        position: The place of the first token in the sequence.
        replayed: The drafts between the settled position before the step and the first token.
        settles: How many of these drafts, and then of the tokens, are settled after the step.
    """

    row: Ints
    first: Ints
    num_tokens: Ints
    position: Ints
    replayed: Ints
    settles: Ints


class RowPlaces:
    """Hold the settled position of each row, and the one after all that has been read."""

    def __init__(self, room: Allocation) -> None:
        self._num_drafts = room.num_drafts
        self.settled, self.read = np.zeros((2, room.num_states + room.num_snapshots), np.int32)

    def take(self, batch: StepBatch) -> Reads:
        """Return what a step reads, and note what rows hold after it.

        Raises:
            ValueError: A sequence begins where its row holds no state, or has too many drafts.
        """
        first, count = batch.query_start[:-1], np.diff(batch.query_start)
        rows, settled = batch.state_rows, batch.settled_len
        if not count.all():
            has_tokens = count > 0
            first, count, rows, settled = (x[has_tokens] for x in (first, count, rows, settled))
        begin = batch.positions[first]
        end, begins = begin + count, begin == 0
        base = np.where(begins, 0, self.settled[rows])
        settled = np.minimum(np.maximum(settled, base), end)
        if (begin < base).any() or ((begin > self.read[rows]) & ~begins).any():
            raise ValueError(f"rows {rows.tolist()} hold no states before positions {begin.tolist()}")
        if (end - settled > self._num_drafts).any():
            raise ValueError(f"a sequence has more than {self._num_drafts} drafts")
        self.settled[rows], self.read[rows] = settled, end
        return Reads(rows, first, count, begin, begin - base, settled - base)

    def check(self, row: int, position: int) -> None:
        """Raise InputsError unless a row holds a settled state at this position."""
        if (settled := int(self.settled[row])) != position:
            raise InputsError(f"row {row} holds the state after {settled} tokens, not after {position}")

    def put(self, row: int, position: int) -> None:
        """Note that a row holds a settled state at a position."""
        self.settled[row] = self.read[row] = position
