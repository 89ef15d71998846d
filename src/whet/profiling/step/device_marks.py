"""Time the phases of a step on the GPU's own clock, without making anything wait.

At each change of phase, an event is recorded on the stream. The time between two events is what the GPU did for that
phase, plus the time that it was idle while the phase ran. So a loader that the GPU waits for shows up as data wait, and
one that loads while the GPU computes does not. Events are read some steps later, once the GPU has passed them.
"""

from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

from whet.profiling.step.phases import Phase

_MOST_STEPS = 256  # steps that wait to be read; a loop never runs that far ahead of its GPU
_MOST_MARKS = 20_000  # marks in one step; a step with more is not timed on the GPU

Marked = list[tuple[int, Any]]


def cuda_event() -> Any:
    return torch.cuda.Event(enable_timing=True)


class DeviceMarks:
    """Hold the events of each step. `new_event` makes one, with record, query, synchronize and elapsed_time."""

    def __init__(self, new_event: Callable[[], Any] = cuda_event) -> None:
        self._new_event = new_event
        self._pool: list[Any] = []
        self._marked: Marked = []
        self._steps: deque[tuple[int, Marked]] = deque()

    def mark(self, ran: int) -> None:
        if len(self._marked) > _MOST_MARKS:
            return
        event = self._pool.pop() if self._pool else self._new_event()
        event.record()
        self._marked.append((ran, event))

    def begin(self) -> None:
        """Forget the marks that were made outside of a step."""
        self._pool.extend(event for _, event in self._marked)
        self._marked = []

    def end(self, step: int) -> None:
        """Attribute all marks since `begin` to this step."""
        if len(self._marked) > _MOST_MARKS:
            return self.begin()
        self._steps.append((step, self._marked))
        self._marked = []
        if len(self._steps) > _MOST_STEPS:
            self._reuse(self._steps.popleft()[1])
        return None

    def passed(self, *, wait: bool = False) -> list[tuple[int, tuple[int, ...]]]:
        """Return the steps that the GPU has finished (with `wait`, all), oldest first, with nanoseconds by Phase."""
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
                ns[ran] += int(start.elapsed_time(stop) * 1e6)  # from milliseconds
            finished.append((step, tuple(ns)))
            self._steps.popleft()
            self._reuse(marked)
        return finished

    def _reuse(self, marked: Marked) -> None:
        self._pool.extend(event for _, event in marked)
