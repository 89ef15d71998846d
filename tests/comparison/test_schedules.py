"""The order of each schedule, and which runs belong together."""

from collections import Counter
from collections.abc import Iterator

import pytest
from fakes import Fake, made, timed

from whet.comparison.run import Run, Side
from whet.comparison.schedules import ABBA, Rounds, Schedule, Turns, measured
from whet.measure.load import Load
from whet.measure.quiet import QuietWait


def waiting(wait_s: float = 100.0) -> QuietWait:
    """QuietWait on a machine that is quiet whenever somebody looks."""
    return QuietWait("wait", wait_s, glance=lambda seconds: (Load(seconds, 2), ""))


def spent() -> QuietWait:
    """QuietWait that has run out: no time is left, and three measurements in a row were disturbed."""
    patience = waiting(0.0)
    for _ in range(3):
        patience.measure(lambda: Run(busy="others"), lambda run: run.busy)
    assert patience.has_run_out
    return patience


def names(rounds: Iterator[dict[str, Run]]) -> list[set[str]]:
    return [set(found) for found in rounds]


class Together:
    """Measures pairs without processes, and notes which pair was measured and who began."""

    def __init__(self, *busy: tuple[str, str]) -> None:
        self.busy = list(busy)
        self.asked: list[tuple[str, str, int]] = []

    def __call__(self, old: Side, new: Side, first: int) -> tuple[Run, Run]:
        self.asked.append((old.name, new.name, first))
        busy = self.busy.pop(0) if self.busy else ("", "")
        return Run(seconds=2.0, busy=busy[0]), Run(seconds=1.0, busy=busy[1])

    def first_of(self, seed: int, num_rounds: int) -> list[int]:
        """Return who began in each round."""
        self.asked.clear()
        for number in range(num_rounds):
            list(Turns(self, seed).round(number, [(timed("old", 1.0), timed("new", 1.0))], [], waiting()))
        return [first for _, _, first in self.asked]


def test_a_round_of_rounds_measures_each_side_once_however_often_it_is_shared() -> None:
    log: list[str] = []
    old, a, b, alone = (timed(name, 1.0, log=log) for name in ("old", "a", "b", "alone"))
    (found,) = Rounds().round(0, [(old, a), (old, b)], [alone], waiting())
    assert sorted(log) == ["a", "alone", "b", "old"]
    assert list(found) == log


def test_each_round_of_rounds_has_an_order_of_its_own_which_the_seed_fixes() -> None:
    def orders(schedule: Schedule) -> list[str]:
        pair = (timed("old", 1.0), timed("new", 1.0))
        return ["".join(*schedule.round(number, [pair], [timed("x", 1.0)], waiting())) for number in range(60)]

    assert orders(Rounds()) == orders(Rounds(0)) != orders(Rounds(1))
    assert len(Counter(orders(Rounds()))) == 6  # all orders of three come up


def test_the_order_in_a_round_does_not_depend_on_the_order_of_the_pairs() -> None:
    old, a, b = (timed(name, 1.0) for name in ("old", "a", "b"))
    for number in range(10):
        (one,) = Rounds().round(number, [(old, a), (old, b)], [], waiting())
        (other,) = Rounds().round(number, [(b, old), (old, a)], [], waiting())
        assert list(one) == list(other)


def test_abba_turns_each_pair_round_and_measures_the_rest_after_the_pairs() -> None:
    log: list[str] = []
    a, b, c, alone = (timed(name, 1.0, log=log) for name in ("a", "b", "c", "x"))
    for number in range(3):
        found = names(ABBA().round(number, [(a, b), (a, c)], [alone], waiting()))
        assert found == [{"a", "b"}, {"a", "c"}, {"x"}]
    assert "".join(log) == "abacx" + "bacax" + "abacx"


@pytest.mark.parametrize(("number", "alive"), [(0, {"old"}), (1, {"new"})])
def test_abba_leaves_the_second_side_of_a_pair_out_after_a_failure(number: int, alive: set[str]) -> None:
    def fails(name: str) -> Fake:
        return made(name, lambda i: Run(failure="lost"))

    others = timed("a", 1.0), timed("b", 1.0)
    found = ABBA().round(number, [(fails("old"), fails("new")), others], [], waiting())
    assert names(found) == [alive, {"a", "b"}]


def test_in_turns_each_side_begins_in_one_of_two_rounds() -> None:
    first = Together().first_of(0, 80)
    assert all({one, other} == {0, 1} for one, other in zip(first[::2], first[1::2], strict=True))
    assert min(Counter(first[::2]).values()) > 8  # and which of them begins is drawn


def test_who_begins_is_fixed_by_the_seed() -> None:
    together = Together()
    assert together.first_of(0, 40) == together.first_of(0, 40) != together.first_of(1, 40)
    assert Turns(together) == Turns(together, seed=0)


def test_turns_measure_each_pair_by_itself() -> None:
    together = Together()
    old, a, b = (timed(name, 1.0) for name in ("old", "a", "b"))
    found = list(Turns(together).round(0, [(old, a), (old, b)], [], waiting()))
    assert [(pair[0], pair[1]) for pair in together.asked] == [("old", "a"), ("old", "b")]
    assert [{name: run.seconds for name, run in runs.items()} for runs in found] == [
        {"old": 2.0, "a": 1.0},
        {"old": 2.0, "b": 1.0},
    ]


@pytest.mark.parametrize("busy", [("others", ""), ("", "others")])
def test_a_pair_is_measured_again_where_either_side_was_disturbed(busy: tuple[str, str]) -> None:
    together = Together(busy)
    (found,) = Turns(together).round(0, [(timed("old", 1.0), timed("new", 1.0))], [], waiting())
    assert len(together.asked) == 2
    assert all(run.counts for run in found.values())


def test_no_pair_of_turns_is_begun_without_patience() -> None:
    together = Together()
    assert list(Turns(together).round(0, [(timed("old", 1.0), timed("new", 1.0))], [], spent())) == []
    assert together.asked == []


def test_a_disturbed_side_is_measured_again() -> None:
    side = made("a", lambda i: Run(seconds=1.0 + i, busy="" if i == 2 else "others"))
    assert measured(side, waiting()).seconds == 3.0
