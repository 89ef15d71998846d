"""Sides of a comparison whose times are written down in the tests."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import repeat

from whet.comparison.run import Run
from whet.measure.load import Load
from whet.measure.quiet import QuietWait


@dataclass
class Fake:
    """A side that gives its runs one after the other, and notes in `log` when it was asked."""

    name: str
    runs: Iterator[Run]
    log: list[str] = field(default_factory=list)

    def run(self) -> Run:
        self.log.append(self.name)
        return next(self.runs)


def timed(name: str, *seconds: float, log: list[str] | None = None) -> Fake:
    """A side with these times; the last one is repeated for ever."""
    times = (Run(seconds=time_s) for time_s in (*seconds, *repeat(seconds[-1], 100)))
    return Fake(name, times, log if log is not None else [])


def made(name: str, make: Callable[[int], Run], log: list[str] | None = None) -> Fake:
    """A side whose n-th run, from 0 on, `make` makes."""
    return Fake(name, map(make, range(1000)), log if log is not None else [])


def patience(on_busy: str = "wait", wait_s: float = 0.001) -> QuietWait:
    """One that has hardly any, on a machine that stays busy."""
    return QuietWait(
        on_busy, wait_s, glance=lambda seconds: (Load(seconds, 2, foreign_s=2 * seconds), "make (2.0 cores)")
    )
