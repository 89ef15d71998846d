"""A run diverges at NaN, or where losses stay far above the first ones and above a guess; one odd batch is none."""

import itertools
import math

import pytest

from whet.techniques.proof.divergence import FIRST, PATIENCE, LossWatch, divergence


def faults(watch: LossWatch, losses: list[float]) -> list[str]:
    return [why for step, loss in enumerate(losses, 1) if (why := watch.fault(step, loss))]


@pytest.mark.parametrize("odd", [1, PATIENCE - 1])
def test_a_few_odd_batches_are_no_divergence(odd: int) -> None:
    losses = [0.02] * FIRST + ([5.0] * odd + [0.004]) * 4
    watch = LossWatch()
    assert faults(watch, losses) == []
    assert not watch.is_far


def test_losses_that_stay_far_are_a_divergence() -> None:
    watch = LossWatch(floor=math.log(2))
    losses = [0.02] * FIRST + [5.0] * PATIENCE
    assert faults(watch, losses) == [
        "the losses of the last 20 steps are more than 0.6931 (the loss of a guess): 5 in step 40"
    ]


def test_losses_below_a_guess_are_none() -> None:
    assert faults(LossWatch(floor=math.log(2)), [0.004] * FIRST + [0.6] * 100) == []
    assert faults(LossWatch(floor=0.1), [0.004] * FIRST + [0.6] * PATIENCE) != []


def test_nan_ends_at_once_whatever_the_factor() -> None:
    for watch, value in itertools.product((LossWatch(), LossWatch(factor=0)), (math.nan, math.inf, -math.inf)):
        assert watch.fault(1, value) == f"the loss of step 1 is {value}"


def test_no_factor_turns_it_off_and_the_patience_is_the_given_one() -> None:
    losses = [0.5] * FIRST + [1e9] * 100
    assert faults(LossWatch(factor=0), losses) == []
    assert (
        "the last 3 steps are more than 1 (2 times the first ones): "
        in faults(LossWatch(factor=2, patience=3), losses)[0]
    )


def test_a_run_that_goes_on_knows_its_first_losses() -> None:
    before = LossWatch(patience=1)
    assert faults(before, [3.0] * FIRST) == []
    after = LossWatch(patience=1, largest=before.largest)
    assert after.fault(FIRST + 1, 29.0) == ""
    assert after.fault(FIRST + 2, 31.0) != ""


def test_a_candidate_may_meet_an_odd_batch_only_where_the_original_was_not() -> None:
    losses = [0.1, 0.1, 5.0, 0.1]
    assert divergence(losses, 1.0, num_known=3) == (
        "the loss of step 3 is 5, more than 10 times the original's largest"
    )
    assert divergence(losses, 1.0, num_known=2) == ""
    assert "the loss of step 21 " in divergence([0.1, *[5.0] * 30], 1.0, num_known=0)
