"""Models whose state has a fixed size, as recurrent and memory-bank families have, behind the same interface.

GatedRecurrence keeps one vector a sequence; MemoryBank a few slots, written and read with attention; WithBlocks has
such a state and blocks that grow with the tokens as well. Each can also give its logits from a list of tokens alone,
from the first one on, which is what the tests compare with.

Shapes: D width, M slots, V vocabulary, R rows of logits.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from hash_model import HashModel
from torch import Tensor

from whet.models.state_rows import StateRows
from whet.models.step import Allocation, StepBatch

D, M = 8, 3


class Cell(Protocol):
    """One step of a recurrence: the state [*shape] and a token's embedding [D] make the new state and an output [D]."""

    shape: tuple[int, ...]

    def __call__(self, state: Tensor, x_D: Tensor) -> tuple[Tensor, Tensor]: ...


class GatedCell:
    """h <- g * h + (1 - g) * tanh(U x), g = sigmoid(W x)."""

    shape = (D,)

    def __init__(self) -> None:
        self.W_DD, self.U_DD = torch.randn(D, D), torch.randn(D, D)

    def __call__(self, state: Tensor, x_D: Tensor) -> tuple[Tensor, Tensor]:
        gate_D = torch.sigmoid(self.W_DD @ x_D)
        state = gate_D * state + (1 - gate_D) * torch.tanh(self.U_DD @ x_D)
        return state, state


class BankCell:
    """Slots are blended with the token's value by how well they match its key; read back with the same weights."""

    shape = (M, D)

    def __init__(self) -> None:
        self.addresses_MD, self.V_DD = torch.randn(M, D), torch.randn(D, D)

    def __call__(self, state: Tensor, x_D: Tensor) -> tuple[Tensor, Tensor]:
        weights_M = torch.softmax((self.addresses_MD + state) @ x_D, 0)
        state = state + weights_M[:, None] * (torch.tanh(self.V_DD @ x_D) - state) * 0.5
        return state, weights_M @ state


class RecurrentModel:
    """A ServedModel without blocks. What a row held before belongs to another sequence: position 0 starts it anew."""

    can_rewind = True
    bytes_per_block = 0
    bytes_to_rewind = 0
    block_size = 1

    def __init__(
        self, cell: type[GatedCell] | type[BankCell], *, vocab_size: int = 40, max_model_len: int = 64
    ) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(5)
            self.cell: Cell = cell()
            self.embedding_VD = torch.randn(vocab_size, D)
            self.head_VD = torch.randn(vocab_size, D) * 3
        self.vocab_size, self.max_model_len = vocab_size, max_model_len
        self.bytes_per_state = self.bytes_per_draft = 4 * torch.Size(self.cell.shape).numel()

    def allocate(self, room: Allocation) -> None:
        self.rows: StateRows[Tensor] = StateRows(room, lambda: torch.zeros(self.cell.shape))

    def copy_state(self, source_row: int, target_row: int) -> None:
        self.rows.copy(source_row, target_row)

    def step(self, batch: StepBatch) -> Tensor:
        outputs = torch.zeros(len(batch.token_ids), D)
        for s, row in enumerate(batch.state_rows.tolist()):
            first, end = batch.query_start[s], batch.query_start[s + 1]
            begin = int(batch.positions[first])
            state, after = self.rows.before(row, begin), {}
            for t in range(first, end):
                state, outputs[t] = self.cell(state, self.embedding_VD[int(batch.token_ids[t])])
                after[int(batch.positions[t]) + 1] = state
            self.rows.keep(row, begin, after, int(batch.settled_len[s]))
        rows = [self.head_VD @ outputs[r] for r in batch.logit_rows.tolist()]
        return torch.stack(rows) if rows else torch.zeros(0, self.vocab_size)

    def logits_after(self, token_ids: Sequence[int]) -> Tensor:
        state = output = torch.zeros(self.cell.shape)
        for token_id in token_ids:
            state, output = self.cell(state, self.embedding_VD[token_id])
        return self.head_VD @ output


class WithBlocks(RecurrentModel):
    """Both kinds of state at once, as hybrids have."""

    def __init__(self, *, max_model_len: int = 64) -> None:
        super().__init__(GatedCell, max_model_len=max_model_len)
        self.hashed = HashModel(max_model_len=max_model_len)
        self.bytes_per_block, self.block_size = self.hashed.bytes_per_block, self.hashed.block_size

    def allocate(self, room: Allocation) -> None:
        super().allocate(room)
        self.hashed.allocate(room)

    def step(self, batch: StepBatch) -> Tensor:
        return super().step(batch) + self.hashed.step(batch)

    def logits_after(self, token_ids: Sequence[int]) -> Tensor:
        return super().logits_after(token_ids) + self.hashed.logits_after(token_ids)
