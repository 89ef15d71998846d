"""When each rule has enough pairs, and what it makes of them."""

import math

import numpy as np
import pytest
import scipy.stats

from whet.comparison.claim import Verdict, claim_of
from whet.comparison.stopping import Fixed, Sequential, UntilClear


@pytest.mark.parametrize(
    ("new_s", "is_over"),
    [
        ([], False),
        ([1.1, 1.2], False),
        ([1.1, 1.2, 1.0], True),  # as slow counts as lost
        ([1.1, 1.2, 0.99], False),
        ([1.1, 1.2, 1.0, 0.5], True),  # what came after the first three does not matter
        ([0.9, 1.1, 1.1, 1.1], False),
        ([0.9] * 7, False),
        ([0.9] * 8, True),
    ],
)
def test_a_fixed_number_ends_with_the_last_pair_or_three_lost_ones(new_s: list[float], is_over: bool) -> None:
    assert Fixed().is_over([1.0] * len(new_s), new_s, 1) is is_over


def test_who_never_gives_up_measures_all_pairs() -> None:
    rule = Fixed(most=4, lost_after=0)
    assert not rule.is_over([1.0] * 3, [2.0] * 3, 1)
    assert rule.is_over([1.0] * 4, [2.0] * 4, 1)


def test_the_noise_floor_is_that_of_all_runs_of_the_original() -> None:
    old_s, new_s = [2.0, 2.02, 1.98, 2.0, 2.01, 1.99], [1.0, 1.01, 0.99, 1.0, 1.02, 0.98]
    assert Fixed().judge(old_s, new_s, 1, old_s).verdict is Verdict.PASS
    loud = [2.0, 4.0, 1.0, 4.0, 1.0, 5.0, 1.0, 4.0]
    claim = Fixed().judge(old_s, new_s, 1, loud)
    assert claim.noise > 1.25
    assert claim.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("rule", [Fixed(), UntilClear(), Sequential()])
@pytest.mark.parametrize("num_pairs", [0, 1])
def test_fewer_than_two_pairs_prove_nothing(rule: Fixed | UntilClear | Sequential, num_pairs: int) -> None:
    claim = rule.judge([2.0] * num_pairs, [1.0] * num_pairs, 1, [])
    assert claim.verdict is Verdict.INCONCLUSIVE
    assert (claim.ratio, claim.ci95, claim.num_pairs) == (None, None, num_pairs)


@pytest.mark.parametrize(
    ("old_s", "new_s", "is_over"),
    [
        ([1.0, 1.0], [1.2, 1.1], True),  # slower twice
        ([1.0, 1.0], [1.2, 1.01], False),
        ([1.0, 1.02, 0.98], [0.5, 0.51, 0.5], True),  # clearly faster
        ([1.0, 1.3, 0.8], [0.99, 1.25, 0.82], True),  # hardly faster
        ([1.0, 1.3, 0.8], [0.7, 1.25, 0.75], False),  # perhaps faster
        ([1.0, 1.3, 0.8] * 2, [0.7, 1.25, 0.75] * 2, True),  # enough
    ],
)
def test_a_screening_ends_as_soon_as_it_is_clear(old_s: list[float], new_s: list[float], is_over: bool) -> None:
    assert UntilClear().is_over(old_s, new_s, 1) is is_over


def test_a_screening_passes_by_its_interval_from_three_pairs_on() -> None:
    assert UntilClear().judge([1.0, 1.02, 0.98], [0.5, 0.51, 0.5], 1, []).verdict is Verdict.PASS
    assert UntilClear().judge([1.0, 1.0001], [0.5, 0.5], 1, []).verdict is Verdict.INCONCLUSIVE
    assert UntilClear().judge([0.5, 0.51, 0.5], [1.0, 1.02, 0.98], 1, []).verdict is Verdict.FAIL


def test_between_looks_nobody_looks() -> None:
    rule = Sequential()
    slower = [1.5 + 0.001 * i for i in range(20)]
    old_s = [1.0 + 0.001 * (i % 3) for i in range(20)]
    assert [n for n in range(2, 21) if rule.is_over(old_s[:n], slower[:n], 1)] == list(rule.looks)
    assert rule.judge(old_s[:4], slower[:4], 1, []).verdict is Verdict.INCONCLUSIVE
    assert rule.judge(old_s[:5], slower[:5], 1, []).verdict is Verdict.FAIL
    assert (rule.least, rule.most, rule.spare) == (5, 20, 20)


def test_the_tolerance_passes() -> None:
    old_s = [1.0 + 0.001 * (i % 3) for i in range(20)]
    new_s = list(reversed(old_s))
    assert Sequential(0.02).judge(old_s, new_s, 1, []).verdict is Verdict.PASS
    assert Sequential(0.0001).judge(old_s, new_s, 1, []).verdict is Verdict.INCONCLUSIVE


def test_how_many_pairs_each_rule_wants_by_itself() -> None:
    assert (Fixed().most, Fixed().least, Fixed().spare, Fixed().lost_after) == (8, 6, 4, 3)
    assert (UntilClear().most, UntilClear().least, UntilClear().spare) == (6, 3, 0)
    assert (Sequential().most, Sequential().least, Sequential().spare) == (20, 5, 20)


def test_the_noise_of_pairs_is_students_interval_of_their_ratios() -> None:
    old_s, new_s = [1.0, 1.1, 1.05, 1.2], [1.0, 1.0, 1.0, 1.0]
    logs = np.log(old_s)
    half = scipy.stats.t.ppf(0.975, 3) * logs.std(ddof=1) / math.sqrt(4)
    rule = Fixed(noise_from="pairs")
    assert rule.judge(old_s, new_s, 1, [1.0, 9.0, 1.0]).noise == pytest.approx(math.exp(half))
    two = scipy.stats.t.ppf(0.975, 1) * logs[:2].std(ddof=1) / math.sqrt(2)
    assert rule.judge(old_s[:2], new_s[:2], 1, []).noise == pytest.approx(math.exp(two))
    assert rule.judge(old_s[:1], new_s[:1], 1, []).noise == 1.0


@pytest.mark.parametrize("rule", [Fixed(), UntilClear(), Sequential()])
def test_two_pairs_have_a_ratio_and_an_interval(rule: Fixed | UntilClear | Sequential) -> None:
    claim = rule.judge([2.0, 2.2], [1.0, 1.0], 1, [])
    expected = claim_of([2.0, 2.2], [1.0, 1.0])
    assert (claim.ratio, claim.ci95, claim.num_pairs) == (expected.ratio, expected.ci95, 2)
    assert claim.verdict is Verdict.INCONCLUSIVE


def test_one_pair_is_kept_although_it_proves_nothing() -> None:
    for rule in (Fixed(), UntilClear(), Sequential()):
        claim = rule.judge([2.0], [1.0], 1, [])
        assert (claim.old_s, claim.new_s) == ((2.0,), (1.0,))


def test_a_screening_is_open_where_its_interval_holds_one() -> None:
    assert UntilClear().judge([1.0, 1.3, 0.8], [0.7, 1.25, 0.75], 1, []).verdict is Verdict.INCONCLUSIVE
    assert UntilClear().judge([0.7, 1.25, 0.75], [1.0, 1.3, 0.8], 1, []).verdict is Verdict.INCONCLUSIVE


def test_a_screening_of_two_pairs_at_the_least_looks_at_two() -> None:
    rule = UntilClear(least=2)
    assert rule.is_over([1.0, 1.0001], [0.5, 0.5], 1)
    assert not rule.is_over([1.0, 1.5], [0.9, 0.6], 1)
    assert not rule.is_over([1.0], [0.5], 1)
    assert rule.judge([1.0, 1.0001], [0.5, 0.5], 1, []).verdict is Verdict.PASS


def test_too_little_a_gain_is_two_percent() -> None:
    """Three pairs that scatter a little around a ratio: 1.015 is too little, 1.03 is not, though neither is clear."""
    scatter = [0.98, 1.0, 1.02]
    assert UntilClear().is_over([1.015 * s for s in scatter], [1.0] * 3, 1)
    assert not UntilClear().is_over([1.03 * s for s in scatter], [1.0] * 3, 1)
    assert not UntilClear(too_little=1.01).is_over([1.015 * s for s in scatter], [1.0] * 3, 1)


def test_more_claims_need_more_evidence_before_a_look_decides() -> None:
    random = np.random.default_rng(0)
    old_s, new_s = [1.0] * 5, np.exp(random.normal(0.03, 0.008, 5)).tolist()
    rule = Sequential()
    alone = rule.judge(old_s, new_s, 1, [])
    assert alone.p_value is not None
    assert 0.025 / 1000 < alone.p_value < 0.025
    assert alone.verdict is Verdict.FAIL
    assert rule.is_over(old_s, new_s, 1)
    assert rule.judge(old_s, new_s, 1000, []).verdict is Verdict.INCONCLUSIVE
    assert not rule.is_over(old_s, new_s, 1000)


def test_only_the_sequential_rule_corrects_for_the_number_of_claims() -> None:
    slower = [1.0 + 0.001 * i for i in range(5)], [1.03 + 0.009 * i for i in range(5)]
    claims = [Sequential().judge(*slower, 1, [])] * 100
    assert {claim.verdict for claim in claims} == {Verdict.FAIL}
    assert {claim.verdict for claim in Sequential().conclude(claims)} == {Verdict.INCONCLUSIVE}
    assert Fixed().conclude(claims) == UntilClear().conclude(claims) == claims
