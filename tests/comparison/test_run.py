"""Two runs of a training are compared on the steps that both of them made."""

import pytest
from fakes import made
from hypothesis import given
from hypothesis import strategies as st

from whet.comparison.child import _quiet_calls
from whet.comparison.claim import Verdict
from whet.comparison.compare import compare
from whet.comparison.run import Run, on_common_calls
from whet.comparison.schedules import ABBA
from whet.comparison.stopping import Fixed
from whet.measure.clock import Block
from whet.measure.load import Load


def steps(first: int, last: int, factor: float = 1.0) -> dict[int, float]:
    """A training whose steps become shorter as it goes on."""
    return {number: factor * 10.0 / (1 + number) for number in range(first, last)}


@given(st.floats(0.2, 5.0), st.integers(5, 60), st.integers(5, 60))
def test_a_side_that_makes_more_steps_is_not_called_faster_for_it(factor: float, num_old: int, num_new: int) -> None:
    old = Run(seconds=1.0, calls_s=steps(3, 3 + num_old))
    new = Run(seconds=9.0, calls_s=steps(3, 3 + num_new, factor))
    pair = on_common_calls(old, new)
    assert pair is not None
    before, after = pair
    assert after.seconds / before.seconds == pytest.approx(factor)
    assert on_common_calls(before, after) == (before, after)


def test_too_few_common_steps_are_no_pair() -> None:
    old, new = Run(seconds=1.0, calls_s=steps(0, 9)), Run(seconds=1.0, calls_s=steps(7, 30))
    assert on_common_calls(old, new) is None


def test_calls_that_repeat_are_left_as_they_are() -> None:
    old, new = Run(seconds=2.0), Run(seconds=1.0, calls_s=steps(0, 9))
    assert on_common_calls(old, new) == (old, new)


def test_calls_of_quiet_blocks_have_their_numbers() -> None:
    quiet, disturbed = Load(1.0, 2), Load(1.0, 2, foreign_s=2.0, waited_s=1.0)
    blocks = [Block(1.0, (1.0, 1.1), 1), Block(5.0, (5.0, 5.1, 5.2), 2), *[Block(2.0, (2.0,), 1)] * 4]
    assert _quiet_calls(blocks, [quiet, disturbed, *[quiet] * 4]) == {1: 1.0, 2: 1.1, 9: 2.0, 11: 2.0, 13: 2.0, 15: 2.0}
    assert _quiet_calls(blocks[:2], [quiet, disturbed]) == {1: 1.0, 2: 1.1, 5: 5.0, 6: 5.1, 7: 5.2}


def steps_from(first: int, seconds: float, num: int = 6) -> Run:
    return Run(seconds=seconds, calls_s={first + i: seconds for i in range(num)})


def test_runs_that_share_no_step_are_no_pair_and_end_nothing() -> None:
    """A disturbed block may leave a round without steps that both sides made; the next round may have them."""
    old = made("old", lambda i: steps_from(0, 2.0))
    new = made("new", lambda i: steps_from(0 if i != 1 else 5, 1.0))
    claim = compare(old, new, schedule=ABBA(), stop=Fixed(most=4, least=1, lost_after=0))
    assert (claim.num_pairs, claim.failure) == (3, "")
    assert claim.ratio == pytest.approx(2.0)


def test_where_no_round_has_common_steps_the_claim_says_so() -> None:
    old, new = made("old", lambda i: steps_from(0, 2.0)), made("new", lambda i: steps_from(5, 1.0))
    claim = compare(old, new, schedule=ABBA(), stop=Fixed(most=3, least=1, lost_after=0))
    assert (claim.num_pairs, claim.failed, claim.verdict) == (0, "new", Verdict.INCONCLUSIVE)
    assert "hardly any of its steps were measured quietly on both sides" in claim.failure
