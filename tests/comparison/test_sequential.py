import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from whet.comparison.claim import Claim, Verdict
from whet.comparison.sequential import ALPHA, LOOKS, TOLERANCE, holm, judge, judge_unpaired, overall, p_values
from whet.measure.stats import noise_floor

SCATTER = 0.022  # of a pair's log ratio: what a matrix product shows on two cores


def _run(random: np.random.Generator, slowdown: float, *, drift: float = 0.0) -> Claim:
    """A gate as it runs: pairs come in until the verdict is clear."""
    old: list[float] = []
    new: list[float] = []
    for i in range(LOOKS[-1]):
        common = math.exp(drift * i)
        a, b = np.exp(random.normal(0, SCATTER / math.sqrt(2), 2)) * common
        old.append(float(a))
        new.append(float(b) * slowdown)
        if i + 1 in LOOKS:
            claim = judge(old, new)
            if claim.is_clear:
                return claim
    raise AssertionError("the last look is always clear")


def _share(outcome: Verdict, slowdown: float, runs: int, *, drift: float = 0.0) -> float:
    random = np.random.default_rng(7)
    return sum(_run(random, slowdown, drift=drift).verdict is outcome for _ in range(runs)) / runs


def test_same_code_is_seldom_called_slower() -> None:
    assert _share(Verdict.FAIL, 1.0, 400) <= 0.05


def test_same_code_is_seldom_called_slower_while_the_machine_slows_down() -> None:
    assert _share(Verdict.FAIL, 1.0, 200, drift=0.01) <= 0.05


@pytest.mark.parametrize(("slowdown", "least"), [(1.02, 0.60), (1.03, 0.90), (1.05, 0.99)])
def test_slowdowns_are_found(slowdown: float, least: float) -> None:
    assert _share(Verdict.FAIL, slowdown, 200) >= least


def test_a_clear_case_ends_early() -> None:
    random = np.random.default_rng(3)
    pairs = [_run(random, 1.3).num_pairs for _ in range(20)]
    assert max(pairs) == LOOKS[0]


def test_a_speedup_passes() -> None:
    assert _share(Verdict.PASS, 0.9, 50) == 1.0


def test_fewer_pairs_than_the_first_look_decide_nothing() -> None:
    claim = judge([1.0, 1.0, 1.01], [2.0, 2.1, 2.0])
    assert claim.verdict is Verdict.INCONCLUSIVE
    assert not claim.is_clear


def test_times_without_scatter_are_certain() -> None:
    assert judge([1.0] * 5, [1.0] * 5).verdict is Verdict.PASS
    assert judge([1.0] * 5, [1.5] * 5).verdict is Verdict.FAIL


@given(st.lists(st.integers(-200, 200), min_size=5, max_size=5, unique=True))
def test_p_values_are_students(thousandths: list[int]) -> None:
    logs = np.array(thousandths) / 1000
    claim = judge([1.0] * 5, np.exp(logs).tolist(), looks=(5,))
    _, p_worse = p_values(logs, tolerance=TOLERANCE, looks=(5,))
    slower = scipy.stats.ttest_1samp(logs, 0.0, alternative="greater").pvalue
    worse = scipy.stats.ttest_1samp(logs, math.log1p(TOLERANCE), alternative="less").pvalue
    assert claim.p_value == pytest.approx(slower, rel=1e-6, abs=1e-12)
    assert p_worse == pytest.approx(worse, rel=1e-6, abs=1e-12)


@given(st.lists(st.floats(0.5, 2.0), min_size=5, max_size=20), st.integers(0, 10**6))
def test_the_unit_does_not_matter(old: list[float], seed: int) -> None:
    new = [t * f for t, f in zip(old, np.random.default_rng(seed).uniform(0.9, 1.1, len(old)), strict=True)]
    a, b = judge(old, new), judge([t * 1e3 for t in old], [t * 1e3 for t in new])
    assert a.verdict is b.verdict
    assert a.slowdown == pytest.approx(b.slowdown)
    assert a.p_value == pytest.approx(b.p_value, abs=1e-6)


def _judged(p_value: float, verdict: Verdict = Verdict.INCONCLUSIVE) -> Claim:
    return Claim(verdict=verdict, ratio=1 / 1.1, ci95=(1 / 1.15, 1 / 1.05), p_value=p_value, num_pairs=20, noise=1.001)


def _verdicts(claims: Sequence[Claim]) -> list[Verdict]:
    return [claim.verdict for claim in holm(claims)]


def test_holm_steps_down() -> None:
    # Holm (1979): the smallest p-value against alpha / 3, the next against alpha / 2, and so on until one is larger.
    p_values = [ALPHA / 2 * 0.99, ALPHA / 3 * 0.99, ALPHA * 1.01]
    assert _verdicts([_judged(p) for p in p_values]) == [Verdict.FAIL, Verdict.FAIL, Verdict.INCONCLUSIVE]
    p_values = [ALPHA / 3 * 1.01, ALPHA / 2 * 0.5 + ALPHA, 1.0]
    assert _verdicts([_judged(p) for p in p_values]) == [Verdict.INCONCLUSIVE] * 3


def test_holm_takes_back_a_fail_that_many_benchmarks_do_not_bear() -> None:
    claims = [_judged(ALPHA * 0.9, Verdict.FAIL), _judged(0.5, Verdict.PASS)]
    assert _verdicts(claims) == [Verdict.INCONCLUSIVE, Verdict.PASS]


def test_holm_leaves_out_what_could_not_be_measured() -> None:
    """A benchmark without pairs is no test, so it costs the others nothing."""
    broken = Claim(verdict=Verdict.INCONCLUSIVE, failure="cannot be built", failed="old")
    assert _verdicts([_judged(ALPHA * 0.9, Verdict.FAIL), broken]) == [Verdict.FAIL, Verdict.INCONCLUSIVE]


@pytest.mark.parametrize(
    ("outcomes", "worst"),
    [
        ([Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE], Verdict.FAIL),
        ([Verdict.PASS, Verdict.INCONCLUSIVE], Verdict.INCONCLUSIVE),
        ([Verdict.PASS], Verdict.PASS),
    ],
)
def test_the_worst_outcome_counts(outcomes: Sequence[Verdict], worst: Verdict) -> None:
    assert overall(outcomes) is worst


def test_unpaired_against_welch() -> None:
    random = np.random.default_rng(1)
    old = list(np.exp(random.normal(0, 0.01, 6)))
    new = list(np.exp(random.normal(math.log(1.1), 0.01, 6)))
    claim = judge_unpaired(old, new)
    assert claim.verdict is Verdict.FAIL
    assert claim.ci95 is not None
    assert claim.ratio is not None
    assert claim.ci95[0] < claim.ratio < claim.ci95[1] < 1
    welch = scipy.stats.ttest_ind(np.log(new), np.log(old), equal_var=False, alternative="greater")
    assert claim.p_value == pytest.approx(welch.pvalue)
    assert judge_unpaired(old, old).verdict is Verdict.PASS
    with pytest.raises(ValueError, match="two processes"):
        judge_unpaired([1.0], [1.0, 1.1])


def test_each_look_spends_an_equal_share_of_the_error() -> None:
    """Bonferroni: the smallest of the looks' p-values, times the number of all looks that there will be."""
    logs = np.random.default_rng(4).normal(0.01, 0.02, 9)
    single = [scipy.stats.ttest_1samp(logs[:n], 0.0, alternative="greater").pvalue for n in (5, 8)]
    worse = [scipy.stats.ttest_1samp(logs[:n], math.log(1.05), alternative="less").pvalue for n in (5, 8)]
    found = p_values(logs, tolerance=0.05, looks=(5, 8, 11))
    assert found == pytest.approx((3 * min(single), 3 * min(worse)))
    assert p_values(logs[:4], tolerance=0.05, looks=(5, 8, 11)) == (1.0, 1.0)
    assert p_values(-np.abs(logs), tolerance=0.05, looks=(5, 8, 11))[0] == 1.0  # a probability, however many looks


def test_times_without_scatter_prove_what_lies_beyond_the_limit() -> None:
    assert p_values(np.zeros(5), tolerance=0.02, looks=(5,)) == (1.0, 0.0)
    assert p_values(np.full(5, 0.01), tolerance=0.02, looks=(5,)) == (0.0, 0.0)
    assert p_values(np.full(5, math.log1p(0.02)), tolerance=0.02, looks=(5,)) == (0.0, 1.0)


def test_what_a_claim_of_the_gate_says() -> None:
    old_s, new_s = [1.0, 1.02, 0.99, 1.01, 1.0], [1.1, 1.12, 1.09, 1.1, 1.11]
    claim = judge(old_s, new_s)
    logs = np.log(new_s) - np.log(old_s)
    half = scipy.stats.t.ppf(0.975, 4) * logs.std(ddof=1) / math.sqrt(5)
    assert claim.slowdown == pytest.approx(math.exp(logs.mean()))
    assert claim.slowdown_ci95 == pytest.approx((math.exp(logs.mean() - half), math.exp(logs.mean() + half)))
    assert claim.noise == pytest.approx(math.exp(half))
    assert (claim.num_pairs, claim.old_s, claim.new_s) == (5, tuple(old_s), tuple(new_s))
    assert claim.verdict is Verdict.FAIL
    assert claim.is_clear


def test_an_open_case_is_clear_after_the_last_look_alone() -> None:
    old_s, new_s = [1.0, 1.3] * 4, [1.3, 1.0] * 4
    assert not judge(old_s[:7], new_s[:7], looks=(5, 8)).is_clear
    last = judge(old_s, new_s, looks=(5, 8))
    assert last.is_clear
    assert last.verdict is Verdict.INCONCLUSIVE


def test_two_pairs_are_the_fewest() -> None:
    with pytest.raises(ValueError, match="two pairs"):
        judge([1.0], [1.0])
    assert judge([1.0, 1.1], [1.0, 1.0]).num_pairs == 2


def test_where_equal_code_differs_by_a_quarter_nothing_passes() -> None:
    """Three times as fast, but the ratios scatter by a factor of two."""
    old_s = [3.0, 6.0, 2.0, 5.0, 1.8, 6.0, 2.1, 5.0]
    claim = judge(old_s, [1.0] * 8, looks=(8,))
    _, p_worse = p_values(-np.log(old_s), tolerance=TOLERANCE, looks=(8,))
    assert p_worse < 0.05
    assert claim.noise > 1.25
    assert claim.verdict is Verdict.INCONCLUSIVE


def test_holm_fails_nothing_within_the_noise() -> None:
    quiet, loud = _judged(ALPHA / 100), _judged(ALPHA / 100)
    assert _verdicts([quiet, replace(loud, noise=1.2)]) == [Verdict.FAIL, Verdict.INCONCLUSIVE]


def test_holm_counts_a_p_value_that_is_just_small_enough() -> None:
    assert _verdicts([_judged(ALPHA)]) == [Verdict.FAIL]
    assert _verdicts([_judged(ALPHA / 2), _judged(0.9)]) == [Verdict.FAIL, Verdict.INCONCLUSIVE]


def test_holm_judges_nothing_that_failed_on_the_way() -> None:
    """It gave pairs before it failed; its p-value neither counts nor makes the others' limit stricter."""
    broken = replace(_judged(ALPHA / 100, Verdict.FAIL), failure="killed")
    assert _verdicts([broken, _judged(ALPHA * 0.9)]) == [Verdict.INCONCLUSIVE, Verdict.FAIL]


def test_unpaired_figures_are_welchs() -> None:
    old, new = [1.0, 1.02, 0.99, 1.01], [1.05, 1.1, 1.08, 1.07, 1.06]
    claim = judge_unpaired(old, new)
    welch = scipy.stats.ttest_ind(np.log(old), np.log(new), equal_var=False).confidence_interval(0.95)
    assert claim.ratio == pytest.approx(scipy.stats.gmean(old) / scipy.stats.gmean(new))
    assert claim.ci95 == pytest.approx((math.exp(welch.low), math.exp(welch.high)))
    assert claim.noise == pytest.approx(noise_floor([old, new], num_pairs=4))
    assert (claim.num_pairs, claim.old_s, claim.new_s, claim.is_clear) == (4, tuple(old), tuple(new), True)


def test_unpaired_times_pass_by_the_tolerance_that_is_asked_for() -> None:
    old, new = [1.0, 1.001, 0.999, 1.0], [1.01, 1.011, 1.009, 1.01]
    within = noise_floor([old, new], num_pairs=4)
    assert within < 1.01
    assert judge_unpaired(old, new).verdict is Verdict.FAIL  # slower by one percent, and that is proven
    alike = [1.0, 1.003, 0.998, 1.001]
    assert judge_unpaired(old, alike, tolerance=0.02).verdict is Verdict.PASS
    assert judge_unpaired(old, alike, tolerance=0.0001).verdict is Verdict.INCONCLUSIVE
    assert judge_unpaired(old, [0.5, 1.0, 0.4, 0.9]).verdict is Verdict.INCONCLUSIVE


@pytest.mark.filterwarnings("ignore:Precision loss:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
def test_unpaired_times_without_scatter_are_not_slower() -> None:
    claim = judge_unpaired([1.0, 1.0], [1.0, 1.0])
    assert claim.p_value == 1.0
    assert claim.verdict is not Verdict.FAIL


def test_two_processes_on_each_side_are_enough_without_pairs() -> None:
    assert judge_unpaired([1.0, 1.1], [1.0, 1.1]).num_pairs == 2
    with pytest.raises(ValueError, match="two processes"):
        judge_unpaired([1.0, 1.1], [1.0])


def test_without_benchmarks_nothing_fails() -> None:
    assert overall([]) is Verdict.PASS
    assert holm([]) == []


def test_equal_times_give_a_claim_without_a_warning() -> None:
    claim = judge_unpaired([0.01, 0.01], [0.012, 0.0121])
    assert claim.ratio == pytest.approx(0.01 / math.sqrt(0.012 * 0.0121))
    assert judge_unpaired([0.01, 0.01], [0.01, 0.01]).verdict is not Verdict.FAIL
