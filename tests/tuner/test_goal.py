"""What a search is to reach: which goals are refused, and which of two trials is the better one."""

import math
from typing import Any

import pytest

from whet.errors import OptionError
from whet.tuner.goal import Goal, ranked
from whet.tuner.records import TrialRecord


def trial(number: int, **known: Any) -> TrialRecord:
    return TrialRecord(**{"number": number, "steps": [], "status": "done", **known})


@pytest.mark.parametrize("objective", ["latency", "throughput", "memory", "size"])
def test_a_goal_that_can_be_reached_is_kept_as_it_is(objective: str) -> None:
    goal = Goal.checked(objective, 0.0, 1, 0.001)
    assert (goal.objective, goal.max_drop, goal.max_memory_bytes) == (objective, 0.0, 1)
    assert Goal.checked(objective, 0.99, None, 60.0).max_memory_bytes is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("speed", 0.01, None, 60.0), "objective must be latency, throughput, memory or size, not 'speed'"),
        (("latency", -0.001, None, 60.0), "max_drop must lie in"),
        (("latency", 1.0, None, 60.0), "max_drop must lie in"),
        (("latency", math.nan, None, 60.0), "max_drop must lie in"),
        (("latency", 0.01, 0, 60.0), "max_memory must be more than 0 bytes"),
        (("latency", 0.01, -1, 60.0), "max_memory must be more than 0 bytes"),
        (("latency", 0.01, None, 0.0), "the budget must be more than 0 seconds"),
        (("latency", 0.01, None, -1.0), "the budget must be more than 0 seconds"),
    ],
)
def test_what_no_search_can_reach_is_refused(options: tuple[Any, ...], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Goal.checked(*options)


def test_without_further_words_latency_may_cost_one_percent_of_quality() -> None:
    assert Goal() == Goal("latency", 0.01, None)


@pytest.mark.parametrize(
    ("objective", "asks_for_speed", "needs_memory"),
    [("latency", True, False), ("throughput", True, False), ("memory", False, True), ("size", False, False)],
)
def test_what_a_goal_asks_for(objective: Any, asks_for_speed: bool, needs_memory: bool) -> None:
    assert Goal(objective).asks_for_speed is asks_for_speed
    assert Goal(objective).needs_memory is needs_memory
    assert Goal(objective, max_memory_bytes=1).needs_memory


def test_lower_values_are_better() -> None:
    record = trial(0, speedup=2.0, peak_bytes=300, size_bytes=200)
    assert Goal("latency").value(record) == Goal("throughput").value(record) == pytest.approx(-math.log(2))
    assert Goal("memory").value(record) == 300
    assert Goal("size").value(record) == 200


def test_what_was_not_measured_has_no_value_or_the_worst() -> None:
    assert Goal("latency").value(trial(0)) is None
    assert Goal("memory").value(trial(0)) == Goal("size").value(trial(0)) == math.inf


@pytest.mark.parametrize(
    ("objective", "order"),
    [("latency", [1, 2, 0]), ("throughput", [1, 2, 0]), ("memory", [2, 0, 1]), ("size", [0, 1, 2])],
)
def test_the_best_comes_first(objective: Any, order: list[int]) -> None:
    records = [
        trial(0, speedup=0.9, peak_bytes=200, size_bytes=100),
        trial(1, speedup=3.0, peak_bytes=300, size_bytes=200),
        trial(2, speedup=2.0, peak_bytes=100, size_bytes=300),
    ]
    assert [record.number for record in ranked(Goal(objective), records)] == order


def test_of_equals_the_faster_comes_first_then_the_earlier() -> None:
    records = [trial(3, size_bytes=1, speedup=2.0), trial(1, size_bytes=1), trial(2, size_bytes=1, speedup=2.0)]
    records += [trial(0, size_bytes=1, speedup=0.5), trial(4, size_bytes=1, speedup=3.0)]
    assert [record.number for record in ranked(Goal("size"), records)] == [4, 2, 3, 0, 1]


def test_only_trials_of_the_status_with_a_figure_are_ranked() -> None:
    records = [trial(0), trial(1, speedup=1.5), trial(2, speedup=9.0, status="rejected"), trial(3, status="failed")]
    assert [record.number for record in ranked(Goal(), records)] == [1]
    assert [record.number for record in ranked(Goal(), records, status="rejected")] == [2]
