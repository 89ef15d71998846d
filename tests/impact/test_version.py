"""Which of two versions is faster, and whether their losses are the same."""

import math
from collections.abc import Callable, Sequence

import pytest
from whet.impact.pairs import LOSS_TOLERANCE, Run, compare_losses, run_once, run_pairs

from whet.errors import TargetError
from whet.measure.isolate import Failure, FailureKind, Outcome
from whet.measure.load import Load
from whet.measure.quiet import Patience


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


def busy_outcome(step_s: float, *, disturbed: bool) -> Outcome:
    """Twelve steps in four blocks; another process made those in three of the blocks ten times slower."""
    found = outcome(step_s)
    assert found.value is not None
    load = {"seconds": 1.0, "cores": 2, "foreign_s": 1.0, "waited_s": 0.8}
    blocks = [{"num_steps": 3, "load": load if disturbed and i else {"seconds": 1.0, "cores": 2}} for i in range(4)]
    seconds = [step_s * (10 if disturbed and i >= 3 else 1) for i in range(12)]
    return Outcome({**found.value, "seconds": seconds, "blocks": blocks}, None, 1.0, 0)


def test_disturbed_steps_do_not_count() -> None:
    found = busy_outcome(0.5, disturbed=True)
    assert found.value is not None
    found.value["blocks"][2]["load"] = found.value["blocks"][3]["load"] = {"seconds": 1.0, "cores": 2}
    found.value["seconds"][6:] = [0.5] * 6
    run = run_once(lambda: found)
    assert (run.step_s, run.busy) == (0.5, "")


def test_a_busy_machine_gives_no_comparison() -> None:
    patience = Patience("inconclusive")
    paired = run_pairs(
        lambda: busy_outcome(1.0, disturbed=False),
        lambda: busy_outcome(0.5, disturbed=True),
        most_pairs=6,
        patience=patience,
    )
    assert paired.comparison is None
    assert not paired.is_faster
    assert "other processes used" in paired.busy


def test_a_process_that_was_disturbed_is_run_again() -> None:
    left = iter([True, False, False, False, False, False])
    paired = run_pairs(
        lambda: busy_outcome(1.0, disturbed=False),
        lambda: busy_outcome(0.5, disturbed=next(left)),
        most_pairs=3,
        patience=Patience("wait", 10.0, glance=lambda seconds: (Load(seconds, 2), "")),
    )
    assert paired.comparison is not None
    assert paired.comparison.ratio == pytest.approx(2.0)
