"""The time budget of a search: what is left of it, and processes that may not outlive it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from whet.measure.isolate import Arguments, Failure, FailureKind, Function, Outcome

_OVERRUN = 1.25  # times the budget, plus _GRACE_S: the longest a search may take in all
_GRACE_S = 10.0
_WRITING_S = 5.0  # of the grace: to end processes, and to write the report and the result


Runner = Callable[[Function, Arguments, Path, float], Outcome]
"""Calls a function with arguments in a process of its own: its files go into a directory, it has so many seconds."""


@dataclass(frozen=True)
class BudgetEnded(Failure):
    """A process was ended, or never begun, because the time that it had been given of the budget was up."""


@dataclass(frozen=True)
class Budget:
    """How long a search may take, and when it began. It begins when this object is made.

    seconds: what the user asked for. clock: seconds that never run backwards.
    """

    seconds: float
    clock: Callable[[], float] = time.monotonic
    started: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "started", self.clock())

    @property
    def elapsed_s(self) -> float:
        return self.clock() - self.started

    @property
    def left_s(self) -> float:
        """Seconds until the budget is used up; negative afterwards."""
        return self.seconds - self.elapsed_s

    @property
    def left_at_most_s(self) -> float:
        """Seconds until every process must have ended: 1.25 times the budget and 5 s, counted from the start."""
        return _OVERRUN * self.seconds + _GRACE_S - _WRITING_S - self.elapsed_s

    def bounded(self, run: Runner) -> Runner:
        """A runner whose processes end, at the latest, when `left_at_most_s` is 0."""

        def within(function: Function, arguments: Arguments, directory: Path, time_limit_s: float) -> Outcome:
            return run_within(run, function, arguments, directory, limit_s=time_limit_s, left_s=self.left_at_most_s)

        return within


def run_within(
    run: Runner, function: Function, arguments: Arguments, directory: Path, *, limit_s: float, left_s: float
) -> Outcome:
    """Run a process for at most `limit_s` seconds, and for no more than the `left_s` that the budget still allows.

    Returns:
        What the process gave. The failure is a BudgetEnded where the budget was the limit that ended it.
    """
    if left_s <= 0:
        return Outcome(None, BudgetEnded(FailureKind.TIMEOUT, "was not begun: the budget was used up"), 0.0, 0)
    outcome = run(function, arguments, directory, min(limit_s, left_s))
    failure = outcome.failure
    if failure is None or failure.kind is not FailureKind.TIMEOUT or left_s >= limit_s:
        return outcome
    message = f"was stopped after {left_s:.0f} s, which was all that the budget left for it"
    return Outcome(None, BudgetEnded(FailureKind.TIMEOUT, message), outcome.seconds, outcome.peak_rss_bytes)


def needed_for(seconds: float) -> float:
    """The budget that a search of so many seconds needs, rounded up to a number that people would type."""
    step = 10 if seconds <= 120 else 60
    return float(-(-seconds // step) * step)
