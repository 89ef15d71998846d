"""Pass over rows in batches, in an order drawn anew for each pass."""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import torch
from torch import Tensor

Batch = TypeVar("Batch")


class Shuffled(Generic[Batch]):
    """Yield batches of rows in an order drawn from PyTorch's generator for each pass, without a short last batch."""

    def __init__(self, num_rows: int, batch_size: int, batch_of: Callable[[Tensor], Batch]) -> None:
        """Make batches of a data set. `batch_of` returns that of some rows, whose numbers are int64 [batch_size]."""
        self._num_rows, self._batch_size, self._batch_of = num_rows, batch_size, batch_of

    def __iter__(self) -> Iterator[Batch]:
        order = torch.randperm(self._num_rows)
        for rows in order[: self._num_rows // self._batch_size * self._batch_size].split(self._batch_size):
            yield self._batch_of(rows)
