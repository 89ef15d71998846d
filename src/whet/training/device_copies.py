"""Copy batches to a GPU beside the computation: from pinned memory, on a stream of their own.

PyTorch keeps the pinned blocks and uses them again (its caching host allocator), so that pinning costs little after the
first batches.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only


class DeviceCopies:
    """Copy the tensors of batches to one CUDA device, on a side stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def copied(self, batch: Any) -> Callable[[], Any]:
        """Begin the copy of a batch. Return what the loop calls to get it: its stream waits for the copy."""
        with torch.cuda.stream(self._stream):
            moved = tree_map_only(Tensor, self._moved, batch)
            done = torch.cuda.Event()
            done.record(self._stream)

        def give() -> Any:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(done)
            for x in tree_leaves(moved):
                if isinstance(x, Tensor) and x.is_cuda:
                    x.record_stream(current)  # its memory is used again after the loop's work on it
            return moved

        return give

    def _moved(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu" or x.layout != torch.strided:
            return x
        return (x if x.is_pinned() else x.pin_memory()).to(self._device, non_blocking=True)
