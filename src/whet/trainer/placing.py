"""Bring batches to the device that is trained on."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from whet.trainer.model import Batch


@dataclass(frozen=True)
class OnDevice:
    """Give batches on a device, in their order."""

    batches: Iterable[Batch]
    device: torch.device

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.batches:
            yield {name: value.to(self.device, non_blocking=True) for name, value in batch.items()}


def on_device(batches: Iterable[Batch], device: torch.device) -> Iterable[Batch]:
    """Return batches on a device; those that are on the CPU may stay as they are."""
    return batches if device.type == "cpu" else OnDevice(batches, device)
