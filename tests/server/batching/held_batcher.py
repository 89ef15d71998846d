"""Hold a batcher's thread inside a call, so that a test knows which samples wait."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from whet.server.batching.batcher import DynamicBatcher

LONG_MS = 60_000.0  # so long that only a full batch, or the end of the batcher, ends the waiting


class Gate:
    """A function that says when it is called, and goes on when it is told to."""

    def __init__(self, function: Callable[..., Any] = lambda x: x * 2) -> None:
        self.entered, self.go_on = threading.Semaphore(0), threading.Semaphore(0)
        self.calls: list[Tensor] = []
        self._function = function

    def __call__(self, *tensors: Tensor) -> Any:
        self.calls.append(tensors[0].clone())
        self.entered.release()
        assert self.go_on.acquire(timeout=30)
        return self._function(*tensors)


@contextmanager
def busy(gate: Gate, **options: Any) -> Iterator[DynamicBatcher]:
    """A batcher whose thread is held inside a call with one sample, so that a test knows who waits."""
    batcher = DynamicBatcher(gate, **{"max_batch": 1, "max_wait_ms": 0.0, **options})
    try:
        batcher.submit(torch.zeros(1))
        assert gate.entered.acquire(timeout=30)
        yield batcher
    finally:
        gate.go_on.release(1000)
        batcher.close()
