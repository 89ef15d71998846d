"""Keep to a search's time budget: know what is left of it, and end processes before it is exceeded."""

import time
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path

from whet.measure.isolate import Arguments, Failure, FailureKind, Function, Outcome

_OVERRUN = 1.25  # a search may take this many times the budget, plus _GRACE_S
_GRACE_S = 10.0
_WRITING_S = 5.0  # the part of _GRACE_S kept for ending processes, and for writing the report and the result


Runner = Callable[[Function, Arguments, Path, float], Outcome]
"""Call a function with arguments in a child process, which writes into a directory and has a time limit in seconds."""


@dataclass(frozen=True)
class BudgetEnded(Failure):
    """Report that a process was ended, or not started, because the budget left only `left_s` seconds for it."""

    left_s: float = 0.0


@dataclass(frozen=True)
class Budget:
    """Hold how long a search may take. It begins when this object is made.

    Attributes:
        clock: Returns the time in seconds. It never runs backwards.
        kept_s: Seconds at the end that are kept for saving the original.
    """

    seconds: float
    clock: Callable[[], float] = time.monotonic
    started: float = field(init=False)
    kept_s: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "started", self.clock())

    @property
    def elapsed_s(self) -> float:
        return self.clock() - self.started

    @property
    def left_s(self) -> float:
        """Return the seconds until the budget is used up; negative afterwards."""
        return self.seconds - self.elapsed_s

    @property
    def left_at_most_s(self) -> float:
        """Return the seconds until every process must have ended: 1.25 times the budget and 5 s, less `kept_s`."""
        return _OVERRUN * self.seconds + _GRACE_S - _WRITING_S - self.kept_s - self.elapsed_s

    def keeping(self, seconds: float) -> "Budget":
        """Return this budget with seconds kept for saving the original, at most those by which it may be exceeded."""
        kept = copy(self)
        object.__setattr__(kept, "kept_s", min(seconds, (_OVERRUN - 1) * self.seconds + _GRACE_S - _WRITING_S))
        return kept

    def bounded(self, run: Runner) -> Runner:
        """Return a runner whose processes end, at the latest, when `left_at_most_s` is 0."""
        return bounded(run, lambda: self.left_at_most_s)


def bounded(run: Runner, left_s: Callable[[], float]) -> Runner:
    """Return a runner whose processes have as many seconds as `left_s` returns when they start, at most."""

    def within(function: Function, arguments: Arguments, directory: Path, time_limit_s: float) -> Outcome:
        return run_within(run, function, arguments, directory, limit_s=time_limit_s, left_s=left_s())

    return within


def run_within(
    run: Runner, function: Function, arguments: Arguments, directory: Path, *, limit_s: float, left_s: float
) -> Outcome:
    """Run a process for at most `limit_s` seconds, and at most the `left_s` seconds that the budget still allows.

    The failure is a BudgetEnded where the budget was the limit that ended it.
    """
    if left_s <= 0:
        return Outcome(None, BudgetEnded(FailureKind.TIMEOUT, "was not started: the budget was used up"), 0.0, 0)
    outcome = run(function, arguments, directory, min(limit_s, left_s))
    failure = outcome.failure
    if failure is None or failure.kind is not FailureKind.TIMEOUT or left_s >= limit_s:
        return outcome
    message = f"was stopped after {left_s:.0f} s, which was all that the budget left for it"
    return Outcome(
        None, BudgetEnded(FailureKind.TIMEOUT, message, left_s=left_s), outcome.seconds, outcome.peak_rss_bytes
    )


def needed_for(seconds: float) -> float:
    """Return the budget for a search of so many seconds, rounded up to whole 10 s, or to minutes beyond 2 minutes."""
    step = 10 if seconds <= 120 else 60
    return float(-(-seconds // step) * step)


def budget_words(seconds: float) -> str:
    """Return a budget as --budget takes it: "90s" or "4m"."""
    return f"{seconds / 60:g}m" if seconds >= 60 and seconds % 60 == 0 else f"{seconds:g}s"


def enough(seconds: float) -> str:
    """Return which budget would do, for the end of a sentence."""
    return f"--budget {budget_words(seconds)} would be enough"
