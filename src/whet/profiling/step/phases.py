"""Count which phase of a training step runs, and for how long. Every nanosecond belongs to exactly one phase.

The clock holds a stack of phases and the time of the last change. At each change, the time since then is added to the
phase that ran. So the phases of a step add up to the step, however they are nested.
"""

import sys
import time
from collections.abc import Callable
from enum import IntEnum
from threading import get_ident
from typing import NamedTuple, Protocol

from whet.measure.source_location import Line, user_line


class Phase(IntEnum):
    """Name the parts of a training step. REST is the time in none of the others."""

    REST = 0
    DATA = 1
    TRANSFER = 2
    FORWARD = 3
    BACKWARD = 4
    OPTIMIZER = 5
    SYNC = 6
    COMMUNICATION = 7

    @property
    def label(self) -> str:
        return _LABELS[self]


_LABELS = (
    *("rest", "data wait", "host to device", "forward", "backward", "optimiser", "synchronisation"),
    "communication",
)
_MOST_SITES = 256  # lines of code that are counted separately

# The phases that may begin inside a phase. Any other counts as part of the phase that runs. Forward passes inside a
# backward pass recompute activations. Optimisers may call a closure (LBFGS), or run in hooks of the backward pass.
_WAITS = {Phase.TRANSFER, Phase.SYNC, Phase.COMMUNICATION}
_NESTED: dict[Phase, set[Phase]] = {
    Phase.REST: set(Phase),
    Phase.DATA: _WAITS,
    Phase.TRANSFER: set(),
    Phase.FORWARD: _WAITS,
    Phase.BACKWARD: _WAITS | {Phase.OPTIMIZER},
    Phase.OPTIMIZER: _WAITS | {Phase.FORWARD, Phase.BACKWARD},
    Phase.SYNC: set(),
    Phase.COMMUNICATION: set(),
}
_MAY_NEST = tuple(tuple(inner in _NESTED[outer] for inner in Phase) for outer in Phase)
_REST, _FORWARD, _BACKWARD = int(Phase.REST), int(Phase.FORWARD), int(Phase.BACKWARD)  # quicker than an enum's members


class Marks(Protocol):
    """Define a second clock, as that of a GPU."""

    def mark(self, ran: int) -> None:
        """Note that phase `ran` has run until now."""


class PhaseTotals(NamedTuple):
    """Hold what was counted since `start_ns`, by Phase; `loss_ns` is the time of REST between forward and backward."""

    start_ns: int
    ns: tuple[int, ...]
    calls: tuple[int, ...]
    loss_ns: int


class PhaseClock:
    """Count the time of each phase in one thread. Calls of other threads are not accepted.

    `enter` and `leave` run a dozen times in every step, with caches that the step's own work has emptied. So they call
    no functions of their own, and the same few lines are repeated in `enter`, `leave` and `take`.

    Attributes:
        thread: The id of the thread that counts; None until it is known.
        top: The phase that runs.
        sites: Nanoseconds and calls, by phase, line of the user's code, and what it called; only for phases that were
            left with `leave_at`.
    """

    def __init__(self, now: Callable[[], int] = time.perf_counter_ns) -> None:
        self.is_on = False
        self.thread: int | None = get_ident()
        self.top: int = _REST
        self.marks: Marks | None = None
        self.sites: dict[tuple[int, Line, str], list[int]] = {}
        self._now = now
        self._stack: list[int] = []
        self.reset()

    def reset(self) -> None:
        """Start counting from zero, in the phase that runs."""
        self._ns = [0] * len(Phase)
        self._calls = [0] * len(Phase)
        self._loss_ns = self._pending_ns = 0
        self._after_forward = False
        self._start = self._last = self._now()
        if self.marks is not None:
            self.marks.mark(self.top)

    def accepts(self, phase: int) -> bool:
        """Return whether a call that belongs to `phase` would be counted as such now."""
        return self.is_on and _MAY_NEST[self.top][phase] and get_ident() == self.thread

    def is_mine(self) -> bool:
        """Return whether this is the loop's thread, and the clock is on."""
        return self.is_on and get_ident() == self.thread

    def enter(self, phase: int) -> bool:
        """Start `phase` if it counts now. Return whether it has started. If so, `leave` must follow."""
        top = self.top
        if not self.is_on or not _MAY_NEST[top][phase] or get_ident() != self.thread:
            return False
        now = self._now()
        ran = now - self._last
        self._last = now
        self._ns[top] += ran
        self._calls[phase] += 1
        if top == _REST and self._after_forward:
            self._pending_ns += ran
            if phase == _BACKWARD:
                self._loss_ns += self._pending_ns
                self._pending_ns, self._after_forward = 0, False
        if self.marks is not None:
            self.marks.mark(top)
        self._stack.append(top)
        self.top = phase
        return True

    def leave(self) -> int:
        """End the innermost phase. Return the nanoseconds since it was entered, or since a phase inside it ended."""
        top = self.top
        now = self._now()
        ran = now - self._last
        self._last = now
        self._ns[top] += ran
        if top == _FORWARD:
            self._after_forward = True
        elif top == _REST and self._after_forward:  # `unwind` has ended the phase already
            self._pending_ns += ran
        if self.marks is not None:
            self.marks.mark(top)
        self.top = self._stack.pop() if self._stack else _REST
        return ran

    def leave_at(self, what: str, least_ns: int = 0) -> None:
        """End the innermost phase. Count its time, if at least `least_ns`, for the user's line that called `what`."""
        phase = self.top
        ran = self.leave()
        if ran < least_ns:
            return
        key = (phase, user_line(sys._getframe(1)), what)
        site = self.sites.get(key)
        if site is not None:
            site[0] += ran
            site[1] += 1
        elif len(self.sites) < _MOST_SITES:
            self.sites[key] = [ran, 1]

    def unwind(self) -> None:
        """End all phases."""
        while self.top != _REST:
            self.leave()

    def take(self) -> PhaseTotals:
        """Return what was counted so far. The clock continues; `reset` starts it again from zero."""
        now = self._now()
        ran = now - self._last
        self._last = now
        self._ns[self.top] += ran
        if self._after_forward and self.top == _REST:
            self._pending_ns += ran
        if self.marks is not None:
            self.marks.mark(self.top)
        return PhaseTotals(self._start, tuple(self._ns), tuple(self._calls), self._loss_ns)
