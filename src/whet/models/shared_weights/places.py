"""Lay the weights of a model out in one file: `Measured` computes the places, `InFile` gives the memory there."""

from collections.abc import Callable

import torch
from torch import Tensor

from whet.kernels.linear.places import HUGE_PAGE, Place

_LINE, _PAGE = 64, 4096  # where vectors and matrices begin


def _span(used: int, num_bytes: int, *, is_matrix: bool) -> tuple[int, int]:
    """Return where the next weight begins and ends, after `used` bytes."""
    step = _PAGE if is_matrix else _LINE
    start = -(-used // step) * step
    return start, start + num_bytes


class Measured(Place):
    """Give no memory, and count the bytes that a model's weights need. Outlines will do.

    Attributes:
        sizes: The bytes of each weight, in order.
    """

    wants_values = False

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self._used = 0

    @property
    def num_bytes(self) -> int:
        """Return the bytes of the file: whole large pages."""
        return -(-self._used // HUGE_PAGE) * HUGE_PAGE

    def take(self, num_bytes: int, *, is_matrix: bool = False) -> Tensor:
        self.sizes.append(num_bytes)
        _, self._used = _span(self._used, num_bytes, is_matrix=is_matrix)
        return torch.empty(num_bytes, dtype=torch.uint8, device="meta")

    def noted(self, name: str, compute: Callable[[], str]) -> str:
        return ""


class InFile(Place):
    """Give weights their places in a mapped file, in the order in which `Measured` counted them.

    Args:
        memory: The mapped file, uint8. It is written to unless it `is_packed`.
        notes: What is noted of the weights. Notes are added unless the file `is_packed`.
    """

    def __init__(self, memory: Tensor, notes: dict[str, str], *, is_packed: bool) -> None:
        self.wants_values = not is_packed
        self.notes = notes
        self._memory, self._used = memory, 0

    def take(self, num_bytes: int, *, is_matrix: bool = False) -> Tensor:
        start, self._used = _span(self._used, num_bytes, is_matrix=is_matrix)
        if self._used > len(self._memory):
            raise ValueError(
                f"weights end at byte {self._used}, beyond the {len(self._memory)} bytes that were counted"
            )
        return self._memory[start : self._used]

    def noted(self, name: str, compute: Callable[[], str]) -> str:
        if self.wants_values:
            self.notes[name] = compute()
        return self.notes[name]
