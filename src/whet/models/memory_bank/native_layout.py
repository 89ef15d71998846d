"""Read and write the memories of one sequence in one layer in the order in which whet's kernels keep them.

kernels/memory_model/layout.h defines the order: strips of sixteen slots, then the heads of the test-time memory.

Shape suffixes: S slots, C memory width.
"""

import torch
from torch import Tensor

from whet.kernels.linear.packed import LANES
from whet.models.memory_bank.bank import NEVER, BankState
from whet.models.memory_bank.config import LtmConfig
from whet.models.memory_bank.inference_learning import TestTimeState

_VECTORS = ("weight", "copies", "ages", "usage", "mass", "there", "top", "total", "gate", "bias")
_OF_BANK = ("ages", "usage", "mass", "top", "total")  # that a BankState has by the same names


def padded(size: int) -> int:
    """Return a width with its padding to whole lanes."""
    return -(-size // LANES) * LANES


class RowLayout:
    """Compute the sizes of a row of state, and where its numbers lie.

    Attributes:
        state_size: The numbers of a sequence's memories in a layer.
        in_width: The numbers that a layer's first matrix gives for a token.
        draft_size: The numbers that are kept of a draft.
    """

    def __init__(self, config: LtmConfig) -> None:
        self.width, self.padded_width = config.memory_width, padded(config.memory_width)
        self.strips = -(-config.max_memory_slots // LANES)
        self.depth = {"none": 0, "linear": 1, "mlp": 2}[config.test_time_memory]
        self.heads = config.test_time_heads if self.depth else 0
        self.head = config.memory_width // config.test_time_heads
        self._strip = 4 * LANES * self.padded_width + len(_VECTORS) * LANES
        of_heads = self.heads * 3 * self.depth * self.head * padded(self.head)
        self.state_size = self.strips * self._strip + of_heads
        self.in_width = self.rates + padded(3 * self.heads + 1) if self.heads else self.learns
        self.draft_size = self.in_width + LANES * self.strips

    @property
    def learns(self) -> int:
        """Return the column at which the test-time memory's part of the first matrix begins."""
        return 4 * self.padded_width + LANES if self.strips else 0

    @property
    def rates(self) -> int:
        """Return the column of the test-time memory's rates."""
        return self.learns + 3 * self.heads * padded(self.head)

    def read_bank(self, row: Tensor) -> BankState:
        """Return a copy of a row's bank. It has the slots that are there, in the order of their queries."""
        large, vectors = self._parts(row)
        there = vectors[:, _VECTORS.index("there")].flatten().nonzero()[:, 0]
        at, lane = there // LANES, there % LANES
        found = {name: vectors[at, i, lane] for i, name in enumerate(_VECTORS)}
        contents, pooled = (large[at, i, lane, : self.width] for i in range(2))
        bank = {f"{name}_BS": found[name] for name in _OF_BANK}
        bank["rows_BSR"] = torch.cat((contents, found["weight"][:, None], found["copies"][:, None]), 1)
        bank["pooled_BSC"] = torch.cat((pooled, found["gate"][:, None]), 1)
        return BankState(ids_BS=there[None], **{name: value[None] for name, value in bank.items()})

    def write_bank(self, row: Tensor, bank: BankState) -> None:
        """Put a bank into a row. What follows from its contents is left to the kernels."""
        large, vectors = self._parts(row)
        large.zero_()
        vectors.zero_()
        vectors[:, _VECTORS.index("top")] = NEVER
        slots = (bank.ids_BS[0] >= 0).nonzero()[:, 0]
        ids = bank.ids_BS[0, slots]
        at, lane = ids // LANES, ids % LANES
        rows_SR, pooled_SC = bank.rows_BSR[0, slots].float(), bank.pooled_BSC[0, slots].float()
        large[at, 0, lane, : self.width], large[at, 1, lane, : self.width] = rows_SR[:, :-2], pooled_SC[:, :-1]
        found = {name: getattr(bank, f"{name}_BS")[0, slots].float() for name in _OF_BANK}
        found |= {"weight": rows_SR[:, -2], "copies": rows_SR[:, -1], "gate": pooled_SC[:, -1]}
        found["there"] = torch.ones(len(ids))
        for name, value in found.items():
            vectors[at, _VECTORS.index(name), lane] = value

    def read_heads(self, row: Tensor) -> TestTimeState:
        """Return a copy of a row's test-time memory."""
        heads = self._heads(row)[..., : self.head]
        return TestTimeState(*(heads[None, :, part].clone() for part in range(3)))

    def write_heads(self, row: Tensor, state: TestTimeState) -> None:
        heads = self._heads(row)
        heads.zero_()
        parts = (state.start_BHPCC, state.now_BHPCC, state.momentum_BHPCC)
        heads[..., : self.head] = torch.stack([part[0].float() for part in parts], 1)

    def _parts(self, row: Tensor) -> tuple[Tensor, Tensor]:
        """Return views: [strips, 2, lanes, C] of contents and pooled values, and the vectors [strips, 10, lanes]."""
        strips = row[: self.strips * self._strip].view(self.strips, self._strip)
        size = LANES * self.padded_width
        large = strips[:, : 2 * size].unflatten(1, (2, LANES, self.padded_width))
        return large, strips[:, 4 * size :].unflatten(1, (len(_VECTORS), LANES))

    def _heads(self, row: Tensor) -> Tensor:
        """Return a view [heads, 3, depth, c, padded c]."""
        return row[self.strips * self._strip :].view(self.heads, 3, self.depth, self.head, padded(self.head))
