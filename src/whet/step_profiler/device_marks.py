"""The phases of a step on the GPU's own clock, without making anybody wait.

At each change of phase an event is recorded on the stream. Between two events lies what the GPU did for that phase, and
how long it had nothing to do while the phase ran: a loader that keeps it waiting shows up as data wait here, one that
loads while it computes does not. Events are read once they have passed, some steps later.
"""

from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

from whet.step_profiler.phases import Phase

_MOST_STEPS = 256  # that wait to be read; a loop never runs that far ahead of its GPU
_MOST_MARKS = 20_000  # in one step; one of more is not timed on the GPU

Marked = list[tuple[int, Any]]


def cuda_event() -> Any:
    return torch.cuda.Event(enable_timing=True)


class DeviceMarks:
    """Events by step. new_event: makes an event with record, query, synchronize and elapsed_time, as torch.cuda's."""

    def __init__(self, new_event: Callable[[], Any] = cuda_event) -> None:
        self._new_event = new_event
        self._pool: list[Any] = []
        self._marked: Marked = []
        self._steps: deque[tuple[int, Marked]] = deque()

    def mark(self, ran: int) -> None:
        """The phase `ran` until now."""
        if len(self._marked) > _MOST_MARKS:
            return
        event = self._pool.pop() if self._pool else self._new_event()
        event.record()
        self._marked.append((ran, event))

    def begin(self) -> None:
        """Forget what was marked outside of a step."""
        self._pool.extend(event for _, event in self._marked)
        self._marked = []

    def end(self, step: int) -> None:
        """All that was marked since `begin` belongs to this step."""
        if len(self._marked) > _MOST_MARKS:
            return self.begin()
        self._steps.append((step, self._marked))
        self._marked = []
        if len(self._steps) > _MOST_STEPS:
            self._reuse(self._steps.popleft()[1])
        return None

    def passed(self, *, wait: bool = False) -> list[tuple[int, tuple[int, ...]]]:
        """The steps that the GPU has finished, oldest first, each with nanoseconds by Phase. wait: for all of them."""
        finished = []
        while self._steps and self._steps[0][1]:
            step, marked = self._steps[0]
            last = marked[-1][1]
            if wait:
                last.synchronize()
            elif not last.query():
                break
            ns = [0] * len(Phase)
            for (_, start), (ran, stop) in pairwise(marked):
                ns[ran] += int(start.elapsed_time(stop) * 1e6)  # milliseconds
            finished.append((step, tuple(ns)))
            self._steps.popleft()
            self._reuse(marked)
        return finished

    def _reuse(self, marked: Marked) -> None:
        self._pool.extend(event for _, event in marked)
