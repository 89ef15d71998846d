"""Hold what a training loop works with, while techniques change it."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from whet.measure.device import device_type_of


@dataclass(frozen=True)
class Parts:
    """Hold the model, the optimiser and the batches of a loop.

    A technique returns new parts. It changes the model in place: the same object, with the same parameters under the
    same names, so that whatever else holds the model or its parameters goes on working.

    Attributes:
        notes: What the techniques want to be said in the report.
        later_notes: Asked once steps have been made; each returns one more such note, or "" for none.
    """

    model: nn.Module
    optimizer: Optimizer
    batches: Iterable[Any]
    notes: tuple[str, ...] = ()
    later_notes: tuple[Callable[[], str], ...] = ()

    def __iter__(self) -> Iterator[Any]:
        """Return the model, the optimiser and the batches, as a loop unpacks them."""
        return iter((self.model, self.optimizer, self.batches))

    @property
    def device_type(self) -> str:
        """Return the kind of device that the model is on: "cpu" or "cuda"."""
        return device_type_of(self.model.parameters())


def num_processes() -> int:
    """Return how many processes train together, as torch.distributed knows them."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    return 1
