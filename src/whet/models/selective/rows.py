"""Run a selective state-space model for an engine in PyTorch, one sequence of a step after the other."""

from itertools import pairwise

import torch
from torch import Tensor

from whet.models.selective.reference import Selective
from whet.models.selective.state import SelectiveState, checked_length
from whet.models.state_rows import StateRows
from whet.models.step import Allocation, StepBatch


class RowsOfStates:
    """Run a readable model as a ServedModel. Rounding depends on how many tokens of a sequence a step has.

    Args:
        model: The model.
        max_model_len: The most tokens of a sequence.

    Raises:
        OptionError: max_model_len is out of range.
    """

    can_rewind = True
    bytes_per_block = 0
    block_size = 16

    def __init__(self, model: Selective, max_model_len: int | None = None) -> None:
        self.model = model
        self.vocab_size = model.config.vocab_size
        self.max_model_len = checked_length(max_model_len)
        self.bytes_per_state = self.bytes_per_draft = model.new_state().num_bytes
        self._rows: StateRows[SelectiveState] | None = None

    def allocate(self, room: Allocation) -> None:
        """Allocate the rows of states. There are no blocks."""
        self._rows = StateRows(room, self.model.new_state)

    def copy_state(self, source_row: int, target_row: int) -> None:
        """Copy the settled state of a row to another one."""
        assert self._rows is not None, "allocate comes first"
        self._rows.copy(source_row, target_row)

    @torch.no_grad()
    def step(self, batch: StepBatch) -> Tensor:
        """Read the tokens of a step, and return the logits, float32 [R, V]."""
        assert self._rows is not None, "allocate comes first"
        ids = torch.from_numpy(batch.token_ids).long()
        found = torch.empty(len(ids), self.vocab_size)
        starts, rows, settled = batch.query_start.tolist(), batch.state_rows.tolist(), batch.settled_len.tolist()
        for s, (first, end) in enumerate(pairwise(starts)):
            if first == end:
                continue
            begin = int(batch.positions[first])
            state, after = self._rows.before(rows[s], begin), {}
            # The settled tokens in one call, then each draft: the state after it may be the one to go on from.
            ends = [place for place in range(first + 1, end + 1) if begin + place - first >= settled[s]]
            for part_end in ends:
                state = SelectiveState(state.layers, state.num_tokens)
                found[first:part_end] = self.model(ids[None, first:part_end], state)[0].float()
                after[state.num_tokens] = state
                first = part_end
            self._rows.keep(rows[s], begin, after, settled[s])
        return found[torch.from_numpy(batch.logit_rows).long()]
