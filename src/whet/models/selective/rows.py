"""Run a selective state-space model for an engine in PyTorch, one sequence of a step after the other."""

import torch
from torch import Tensor

from whet.models.selective.reference import Selective
from whet.models.selective.state import SelectiveState, checked_length
from whet.models.step import StepBatch


class RowsOfStates:
    """Run a readable model as a ServedModel. Rounding depends on how many tokens of a sequence a step has.

    Args:
        model: The model.
        max_model_len: The most tokens of a sequence.

    Raises:
        OptionError: max_model_len is out of range.
    """

    can_rewind = False
    bytes_per_block = 0
    block_size = 16

    def __init__(self, model: Selective, max_model_len: int | None = None) -> None:
        self.model = model
        self.vocab_size = model.config.vocab_size
        self.max_model_len = checked_length(max_model_len)
        self.bytes_per_state = model.new_state().num_bytes
        self._rows: list[SelectiveState] = []

    def allocate(self, num_blocks: int, num_states: int) -> None:
        """Allocate the rows of states. There are no blocks."""
        self._rows = [self.model.new_state() for _ in range(num_states)]

    @torch.no_grad()
    def step(self, batch: StepBatch) -> Tensor:
        """Read the tokens of a step, and return the logits, float32 [R, V]."""
        ids = torch.from_numpy(batch.token_ids).long()
        found = torch.empty(len(ids), self.vocab_size)
        starts = batch.query_start.tolist()
        for row, first, end in zip(batch.state_rows.tolist(), starts, starts[1:], strict=False):
            if first == end:
                continue
            if batch.positions[first] == 0:
                self._rows[row] = self.model.new_state()
            found[first:end] = self.model(ids[None, first:end], self._rows[row])[0].float()
        return found[torch.from_numpy(batch.logit_rows).long()]
