"""Which of two versions is faster, and whether their losses are the same."""

import math
from collections.abc import Callable, Sequence

import pytest

from whet.errors import TargetError
from whet.impact.pairs import LOSS_TOLERANCE, Run, compare_losses, run_once, run_pairs
from whet.measure.isolate import Failure, FailureKind, Outcome


def outcome(step_s: float, losses: Sequence[float | None] = (2.0, 1.0)) -> Outcome:
    value = {
        "seconds": [9.0, 9.0, 9.0, step_s, step_s, step_s],
        "losses": list(losses),
        "report": {},
        "peak_bytes": 100,
        "cuda_peak_bytes": None,
    }
    return Outcome(value, None, 1.0, 0)


def runs(*times: float, log: list[str] | None = None, name: str = "") -> Run:
    left = list(times)

    def run() -> Outcome:
        if log is not None:
            log.append(name)
        return outcome(left.pop(0))

    return run


def failing(message: str) -> Callable[[], Outcome]:
    return lambda: Outcome(None, Failure(FailureKind.ERROR, message), 1.0, 0)


def test_the_first_steps_are_not_counted() -> None:
    assert run_once(runs(0.5)).step_s == 0.5


def test_processes_come_in_turn() -> None:
    log: list[str] = []
    a = runs(1.0, 1.1, 0.9, 1.0, log=log, name="a")
    b = runs(1.0, 1.0, 1.0, 1.0, log=log, name="b")
    run_pairs(a, b, most_pairs=4, stop_early=False)
    assert "".join(log) == "abbaabba"


def test_a_clear_gain_ends_it_after_three_pairs() -> None:
    paired = run_pairs(runs(1.0, 1.02, 0.98, 1.0), runs(0.5, 0.51, 0.5, 0.5), most_pairs=6)
    assert paired.comparison is not None
    assert paired.comparison.num_pairs == 3
    assert paired.is_faster
    assert paired.comparison.ratio == pytest.approx(2.0, rel=0.05)


def test_twice_slower_ends_it_after_two_pairs() -> None:
    paired = run_pairs(runs(1.0, 1.0), runs(1.2, 1.1), most_pairs=6)
    assert paired.comparison is not None
    assert (paired.comparison.num_pairs, paired.is_faster) == (2, False)


def test_noise_is_no_gain() -> None:
    paired = run_pairs(runs(1.0, 1.3, 0.8), runs(1.2, 0.9, 1.0), most_pairs=6)
    assert not paired.is_faster


def test_a_variant_that_fails_is_a_result_and_an_original_that_fails_is_an_error() -> None:
    paired = run_pairs(runs(1.0), failing("ValueError: no"), most_pairs=6)
    assert paired.failure == "ValueError: no"
    assert not paired.is_faster
    with pytest.raises(TargetError, match="ValueError: no"):
        run_pairs(failing("ValueError: no"), runs(1.0), most_pairs=6)


def test_losses_within_the_tolerance_are_the_same() -> None:
    gap, words = compare_losses([2.0, 1.0, 1.0], [2.0, 1.0 + LOSS_TOLERANCE / 2, 1.0])
    assert gap is not None
    assert gap <= LOSS_TOLERANCE
    assert words.startswith("same loss over 3 steps")


def test_other_losses_are_told_from_where_on() -> None:
    gap, words = compare_losses([2.0, 1.0, 1.0], [2.0, 1.5, 1.4])
    assert gap == pytest.approx(0.9 / 4.0)  # means 4/3 and 4.9/3
    assert words.endswith("from step 2 on")


def test_lengths_may_differ_and_steps_without_a_loss_are_left_out() -> None:
    assert compare_losses([2.0, None, 1.0, 5.0], [2.0, 3.0, 1.0])[0] == 0.0
    assert compare_losses([None], [1.0])[0] is None
    assert compare_losses([math.nan], [1.0])[0] == math.inf
