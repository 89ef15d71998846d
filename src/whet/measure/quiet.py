"""Handle a busy machine: measure again, wait for quiet up to a stated time, then give no verdict."""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TypeVar

import psutil

from whet.measure.load import MAX_WAITED_LONG, PRETENDED, SOME_FOREIGN, Load, Observed, Read, meter, roots, tree_of
from whet.measure.on_busy import WAIT_S, OnBusy

__all__ = ["WAIT_S", "OnBusy", "Others", "QuietWait"]

T = TypeVar("T")

_GLANCE_S = 0.5  # of watching what other processes use
_PRETENDED_GLANCE_S = 0.1  # where a test pretends what they use
_HOPELESS = 3  # disturbed measurements in a row
_TRIES = 3  # at a block that is measured in this process
_MOST_NAMED = 3


class Others:
    """CPU time of processes outside the measurement, by name, between two looks."""

    def __init__(self, also: Sequence[int] = ()) -> None:
        self._own = {pid for root in (*roots(), *also) for pid in tree_of(root)}
        self._before = self._times()
        self._began = time.monotonic()

    def named(self) -> str:
        """Return the names of the processes that used the most cores since this was made, with their cores.

        They form a clause; "" without any. Processes of other containers are invisible from inside a container.
        """
        seconds = max(1e-3, time.monotonic() - self._began)
        used: defaultdict[str, float] = defaultdict(float)
        for pid, (name, spent_s) in self._times().items():
            used[name] += spent_s - self._before.get(pid, (name, 0.0))[1]
        named = [(name, spent_s / seconds) for name, spent_s in used.items()]
        most = sorted(named, key=lambda pair: -pair[1])[:_MOST_NAMED]
        return ", ".join(f"{name} ({cores:.1f} cores)" for name, cores in most if cores >= SOME_FOREIGN)

    def _times(self) -> dict[int, tuple[str, float]]:
        found = {}
        for process in psutil.process_iter(["name", "cpu_times"]):
            times = process.info["cpu_times"]
            if process.pid not in self._own and times is not None:
                found[process.pid] = (process.info["name"] or "?", times.user + times.system)
        return found


class QuietWait:
    """Keep how long a command may still wait for a quiet machine, and what kept it waiting. Make one for each command.

    Args:
        wait_s: Seconds that may be spent in all on waiting and on measuring again.
        report: Called with a sentence when waiting begins, and with "" when it ends. It may be set later.
        glance: Watches the machine while this process sleeps for the given seconds. It returns the load and the names
            of other processes.
        also: Ids of processes that belong to the measurement, in addition to this process's descendants.
    """

    def __init__(
        self,
        on_busy: OnBusy | str = OnBusy.WAIT,
        wait_s: float = WAIT_S,
        *,
        report: Callable[[str], None] = lambda text: None,
        glance: Callable[[float], tuple[Load, str]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        also: Sequence[int] = (),
    ) -> None:
        self.on_busy = OnBusy(on_busy)
        self.left_s = wait_s if self.on_busy is OnBusy.WAIT else 0.0
        self.spent_s = 0.0  # on waiting and on measuring again
        self.cause = ""  # what disturbed a measurement last, with names
        self._num_in_row = 0
        self._wait_s = wait_s
        self.report = report
        self._glance = glance or (lambda seconds: glance_at_machine(seconds, also))
        self._clock = clock

    @property
    def goes_on(self) -> bool:
        """Return whether disturbed measurements count."""
        return self.on_busy is OnBusy.GO_ON

    def begin(self) -> None:
        """Report a machine that is busy already, in one line, and wait for quiet if the user wants to."""
        load, names = self._glance(_GLANCE_S)
        if load.is_quiet:
            return
        self.cause = _with_names(load.cause, names)
        does = {
            OnBusy.WAIT: f"whet waits for quiet, {self.left_s:.0f} s at most (--busy-wait)",
            OnBusy.INCONCLUSIVE: "what it disturbs will not count (--on-busy inconclusive)",
            OnBusy.GO_ON: "figures may be wrong by any factor (--on-busy go-on)",
        }[self.on_busy]
        self.report(f"The machine is busy: {self.cause}; {does}.")
        if self.on_busy is OnBusy.WAIT and not self.again(load.cause, told=True):
            self._num_in_row = _HOPELESS

    def again(self, cause: str, spent_s: float = 0.0, *, told: bool = False) -> bool:
        """Wait until the machine is quiet, and tell whether to measure again.

        Args:
            cause: What disturbed the measurement, as Load.cause says it.
            spent_s: Seconds that the disturbed measurement took. They count as waiting, so that a machine which looks
                quiet and is not cannot be measured for ever.
            told: Whether the user has been told of the waiting.

        Returns:
            False once the time for waiting is used up, or where the user does not want to wait.
        """
        self._spend(spent_s)
        began = self._clock()
        while True:
            load, names = self._glance(_GLANCE_S)
            self.cause = _with_names(cause, names) if names or not self.cause else self.cause
            is_over = self.left_s - (self._clock() - began) <= 0
            if load.is_quiet or is_over:
                break
            if not told:
                self.report(f"Waiting for a quiet machine, {self.left_s:.0f} s at most: {self.cause}.")
                told = True
        self._spend(self._clock() - began)
        if told:
            self.report("")
        return load.is_quiet and not is_over

    def measure(self, take: Callable[[], T], cause_of: Callable[[T], str]) -> T:
        """Measure something, and again after waiting for quiet where it was disturbed and there is time left.

        The last measurement is returned; it may be a disturbed one. `cause_of` says what disturbed a measurement, as
        Load.cause says it; "" for a quiet one.
        """
        while True:
            began = self._clock()
            value = take()
            cause = cause_of(value)
            self._num_in_row = self._num_in_row + 1 if cause else 0
            if not cause:
                return value
            self.cause = self.cause or cause
            if self.goes_on or not self.again(cause, self._clock() - began):
                return value

    @property
    def has_run_out(self) -> bool:
        """Return whether to give up: no waiting time is left, and the last measurements were all disturbed."""
        return not self.goes_on and self.left_s <= 0 and self._num_in_row >= _HOPELESS

    @property
    def sentence(self) -> str:
        """Return for people why there is no verdict."""
        if self.on_busy is OnBusy.WAIT:
            return f"the machine stayed busy for {self._wait_s:.0f} s of waiting: {self.cause}"
        return f"the machine was busy: {self.cause}"

    def _spend(self, seconds: float) -> None:
        spent_s = min(seconds, self.left_s)
        self.spent_s += spent_s
        self.left_s -= spent_s


def glance_at_machine(seconds: float, also: Sequence[int] = ()) -> tuple[Load, str]:
    """Sleep, and return what the machine did meanwhile and the names of who did it."""
    others = Others(also)
    with Observed(meter(also)) as seen:
        time.sleep(min(seconds, _PRETENDED_GLANCE_S) if PRETENDED in os.environ else seconds)
    return seen.load, others.named() if seen.load.foreign_cores >= 0.1 else ""


def undisturbed(take: Callable[[], T], *, read: Read | None = None, tries: int = _TRIES) -> tuple[T, str]:
    """Call `take` under observation, and again while it was disturbed.

    It is to take a second or so, and to report typical calls: a short burst of other work does not disturb that.

    Returns:
        What the least disturbed call returned, and what disturbed that one; "" for a quiet one.
    """
    read = read or meter()
    found: list[tuple[bool, float, T, str]] = []
    for _ in range(tries):
        with Observed(read) as seen:
            value = take()
        cause = seen.load.cause_beyond(MAX_WAITED_LONG)
        found.append((bool(cause), _lost(seen.load), value, cause))
        if not cause:
            break
    _, _, value, cause = min(found, key=lambda entry: entry[:2])
    return value, cause


def _lost(load: Load) -> float:
    """Return the share of a block that was lost to others, for comparing blocks with each other."""
    lost_s = load.waited_s + load.foreign_s + load.stolen_s + load.throttled_s + load.heat_s
    return lost_s / max(load.seconds, 1e-9)


def _with_names(cause: str, names: str) -> str:
    return f"{cause}: {names}" if names else cause
