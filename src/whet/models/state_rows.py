"""Keep states of fixed size as Python objects, a row a sequence, for models in PyTorch that an engine runs.

A row holds the state at the sequence's settled position, and the states after each draft beyond it. So going back over
drafts takes one of these, and costs the memory of a state for each draft. Models with kernels keep less.
"""

from collections.abc import Callable
from copy import copy
from itertools import pairwise
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from whet.errors import InputsError
from whet.models.options import checked_length
from whet.models.step import Allocation, StepBatch


class ReadableState(Protocol):
    num_tokens: int


State = TypeVar("State", bound=ReadableState)


class StateRows(Generic[State]):
    """Hold rows of states. A state must not be changed once it is given: rows share it with their copies.

    `new` returns the state before the first token.
    """

    def __init__(self, room: Allocation, new: Callable[[], State]) -> None:
        self._new = new
        self._settled = [0] * (room.num_states + room.num_snapshots)
        self._states: list[list[State]] = [
            [] for _ in self._settled
        ]  # after the settled position, after one draft, ...

    @property
    def num_rows(self) -> int:
        """Return the number of rows, those of snapshots included."""
        return len(self._states)

    def before(self, row: int, position: int) -> State:
        """Return the state of a row's sequence before the token at this position. 0 begins a sequence.

        Raises:
            ValueError: The row has no state there: it lies before what is settled, or after what has been read.
        """
        if position == 0:
            return self._new()
        back = position - self._settled[row]
        if not 0 <= back < len(self._states[row]):
            raise ValueError(f"row {row} holds no state before position {position}")
        return self._states[row][back]

    def keep(self, row: int, begin: int, after: dict[int, State], settled: int) -> None:
        """Keep what a step has read of a row's sequence.

        Args:
            begin: The position of the step's first token.
            after: The states before the positions that follow `begin`, by position: those from `settled` on.
            settled: The sequence's settled_len.
        """
        before = [] if begin == 0 else self._states[row][: begin - self._settled[row] + 1]
        found = {self._settled[row] + i: state for i, state in enumerate(before)} | after
        self._settled[row] = settled
        self._states[row] = [found[position] for position in range(settled, max(found) + 1)]

    def settled(self, row: int, position: int | None = None) -> State:
        """Return the settled state of a row.

        Raises:
            InputsError: It is not the one after so many tokens.
        """
        if position is not None and self._settled[row] != position:
            raise InputsError(f"row {row} holds the state after {self._settled[row]} tokens, not after {position}")
        return self._states[row][0]

    def put(self, row: int, state: State) -> None:
        self._settled[row], self._states[row] = state.num_tokens, [state]

    def copy(self, source: int, target: int) -> None:
        """Copy the settled state of a row to another one."""
        self._settled[target], self._states[target] = self._settled[source], self._states[source][:1]


class ServedInRows(Generic[State]):
    """Run a readable model as a ServedModel, one sequence of a step after the other.

    Rounding depends on how many tokens of a sequence a step has.

    Args:
        model: Maps tokens [1, T] and a state to logits [1, T, V], and replaces the state's parts without changing any;
            `new_state()` is its first one, and grows by `bytes_per_token`.

    Raises:
        OptionError: max_model_len is out of range.
    """

    can_rewind = True
    bytes_per_block = 0
    bytes_to_rewind = 0
    block_size = 16

    def __init__(self, model: Any, max_model_len: int | None = None) -> None:
        self.model = model
        self.vocab_size = model.config.vocab_size
        self.max_model_len = checked_length(max_model_len, getattr(model.config, "max_position_embeddings", None))
        longest = model.new_state().num_bytes + model.bytes_per_token * self.max_model_len
        self.bytes_per_state = self.bytes_per_draft = longest
        self._rows: StateRows[State] | None = None

    def allocate(self, room: Allocation) -> None:
        self._rows = StateRows(room, self.model.new_state)

    @property
    def rows(self) -> StateRows[State]:
        assert self._rows is not None, "allocate comes first"
        return self._rows

    def copy_state(self, source_row: int, target_row: int) -> None:
        self.rows.copy(source_row, target_row)

    @torch.no_grad()
    def step(self, batch: StepBatch) -> Tensor:
        states = self.rows
        ids = torch.from_numpy(batch.token_ids).long()
        logit_rows = torch.from_numpy(batch.logit_rows).long()
        found = torch.empty(len(logit_rows), self.vocab_size)
        starts, rows, settled = batch.query_start.tolist(), batch.state_rows.tolist(), batch.settled_len.tolist()
        for s, (first, end) in enumerate(pairwise(starts)):
            if first == end:
                continue
            begin = int(batch.positions[first])
            state, after = states.before(rows[s], begin), {}
            # The settled tokens in one call, then each draft: the state after it may be the one to go on from.
            ends = [place for place in range(first + 1, end + 1) if begin + place - first >= settled[s]]
            for part_end in ends:
                state = copy(state)
                logits = self.model(ids[None, first:part_end], state)[0]
                asked = (logit_rows >= first) & (logit_rows < part_end)
                found[asked] = logits[logit_rows[asked] - first].float()
                after[state.num_tokens] = state
                first = part_end
            states.keep(rows[s], begin, after, settled[s])
        return found
