"""Waiting for a quiet machine, on a clock that only looking and measuring move."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from whet.errors import OptionError
from whet.measure.load import Load, Reading
from whet.measure.quiet import OnBusy, QuietWait, undisturbed

BUSY = Load(seconds=0.5, cores=2, foreign_s=0.5, waited_s=0.0)
QUIET = Load(seconds=0.5, cores=2)


@dataclass
class Machine:
    """It is busy until a moment, in seconds."""

    busy_until_s: float
    now_s: float = 0.0
    said: list[str] = field(default_factory=list)

    def clock(self) -> float:
        return self.now_s

    def glance(self, seconds: float) -> tuple[Load, str]:
        self.now_s += seconds
        is_busy = self.now_s <= self.busy_until_s
        return (BUSY, "ffmpeg (1.0 cores)") if is_busy else (QUIET, "")

    def measure(self) -> str:
        """Take two seconds, and return what disturbed them."""
        began, self.now_s = self.now_s, self.now_s + 2.0
        return "other processes used 1.0 of 2 cores" if began < self.busy_until_s else ""

    def patience(self, on_busy: str = "wait", wait_s: float = 60.0) -> QuietWait:
        return QuietWait(on_busy, wait_s, report=self.said.append, glance=self.glance, clock=self.clock)


def test_a_quiet_machine_is_measured_once_and_nothing_is_said() -> None:
    machine = Machine(0.0)
    patience = machine.patience()
    patience.begin()
    assert patience.measure(machine.measure, str) == ""
    assert machine.said == []
    assert machine.now_s == 2.5


def test_a_busy_machine_is_waited_for_and_measured_again() -> None:
    machine = Machine(20.0)
    patience = machine.patience()
    assert patience.measure(machine.measure, str) == ""
    assert 20.0 < machine.now_s < 24.0
    assert "ffmpeg (1.0 cores)" in machine.said[0]
    assert machine.said[-1] == ""  # the waiting has ended
    assert not patience.has_run_out


def test_who_waited_in_vain_is_told_for_what() -> None:
    machine = Machine(1e9)
    patience = machine.patience(wait_s=30.0)
    patience.begin()
    assert "waits for quiet, 30 s at most" in machine.said[0]
    assert 30.0 <= machine.now_s < 32.0
    assert patience.has_run_out
    assert patience.sentence.startswith("the machine stayed busy for 30 s of waiting: other processes used 1.0 of 2")
    assert "ffmpeg (1.0 cores)" in patience.sentence


def test_measuring_again_counts_as_waiting() -> None:
    """A machine that looks quiet while nothing is measured, and disturbs all that is, is not measured for ever."""
    machine = Machine(0.0)
    patience = machine.patience(wait_s=10.0)

    def always_disturbed() -> str:
        machine.now_s += 2.0
        return "steal"

    for _ in range(3):
        assert patience.measure(always_disturbed, str) == "steal"
    assert machine.now_s < 20.0
    assert patience.has_run_out


def test_nobody_waits_who_does_not_want_to() -> None:
    machine = Machine(1e9)
    patience = machine.patience("inconclusive")
    for _ in range(3):
        assert not patience.has_run_out
        assert patience.measure(machine.measure, str)
    assert patience.has_run_out
    assert machine.now_s < 10.0


def test_who_goes_on_takes_what_comes() -> None:
    machine = Machine(1e9)
    patience = machine.patience("go-on")
    patience.begin()
    assert "may be wrong by any factor" in machine.said[0]
    for _ in range(5):
        assert patience.measure(machine.measure, str)
    assert not patience.has_run_out
    assert patience.cause


def test_another_word_is_refused() -> None:
    with pytest.raises(OptionError, match="--on-busy takes wait, inconclusive, go-on; got 'stop'"):
        OnBusy.checked("stop")


def readings(*foreign_s: float) -> Iterator[Reading]:
    """Readings a second apart, one before and one after each block."""
    now_s = busy_s = 0.0
    for used_s in foreign_s:
        yield Reading(now_s, 2, busy_s=busy_s)
        now_s, busy_s = now_s + 1.0, busy_s + used_s
        yield Reading(now_s, 2, busy_s=busy_s)


def test_a_block_is_taken_again_until_it_is_quiet() -> None:
    values = iter("abc")
    left = readings(1.0, 0.0, 1.0)
    assert undisturbed(lambda: next(values), read=lambda: next(left)) == ("b", "")


def test_the_least_disturbed_block_counts_where_none_is_quiet() -> None:
    values = iter("abc")
    left = readings(1.5, 0.9, 1.2)
    found = undisturbed(lambda: next(values), read=lambda: next(left))
    assert found == ("b", "other processes used 0.9 of 2 cores")
