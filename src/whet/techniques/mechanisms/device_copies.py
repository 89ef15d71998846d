"""Copy batches to a GPU beside the computation: from pinned memory, on a stream of their own.

Batches that are not pinned are laid into buffers that are used again: pinning costs little after the first few.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from whet.techniques.mechanisms.buffer_pool import HOST_BUFFERS, BufferPool, Event


class Staging:
    """Lay the tensors of one batch into buffers from which a GPU copies by itself."""

    def __init__(self, pool: BufferPool = HOST_BUFFERS) -> None:
        self._pool = pool
        self._buffers: list[Tensor] = []

    def staged(self, x: Tensor) -> Tensor:
        """Return a tensor's numbers in pinned memory: the tensor itself, or a buffer."""
        if x.is_pinned():
            return x
        if type(x) is not Tensor or x.requires_grad:
            return x.pin_memory()
        with torch.no_grad():
            buffer = self._pool.like(x).copy_(x)
        self._buffers.append(buffer)
        return buffer

    def end(self, done: Event) -> None:
        """Give the buffers back. They are used again once the event has happened."""
        for buffer in self._buffers:
            self._pool.guard(buffer, done)
        self._buffers.clear()


class DeviceCopies:
    """Copy the tensors of batches to one CUDA device, on a side stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def copied(self, batch: Any) -> Callable[[], Any]:
        """Begin the copy of a batch. Return what the loop calls to get it: its stream waits for the copy."""
        staging = Staging()

        def move(x: Tensor) -> Tensor:
            if x.device.type != "cpu" or x.layout != torch.strided:
                return x
            return staging.staged(x).to(self._device, non_blocking=True)

        with torch.cuda.stream(self._stream):
            try:
                moved = tree_map_only(Tensor, move, batch)
            finally:  # copies that have begun go on
                done = torch.cuda.Event()
                done.record(self._stream)
                staging.end(done)

        def give() -> Any:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(done)
            for x in tree_leaves(moved):
                if isinstance(x, Tensor) and x.is_cuda:
                    x.record_stream(current)  # its memory is used again after the loop's work on it
            return moved

        return give
