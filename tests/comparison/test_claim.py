"""What one claim says of paired times, and which evidence it takes to say so."""

import math
import statistics

import pytest
import scipy.stats

from whet.comparison.claim import Claim, Verdict, claim_of
from whet.measure.load import NO_LOAD
from whet.measure.stats import MAX_NOISE, paired_ratio

EQUAL = [1.0] * 8
FASTER = [1.08, 1.10, 1.12, 1.09, 1.11, 1.10, 1.13, 1.07]  # the old variant beside a new one of 1 s


def test_its_figures_are_the_standard_librarys_and_scipys() -> None:
    claim = claim_of(FASTER, EQUAL, noise=1.01)
    logs = [math.log(ratio) for ratio in FASTER]
    assert claim.verdict is Verdict.PASS
    assert claim.ratio == pytest.approx(statistics.geometric_mean(FASTER))
    assert claim.p_value == pytest.approx(scipy.stats.wilcoxon(logs, zero_method="pratt").pvalue)
    assert claim.ci95 == paired_ratio(FASTER, EQUAL, seed=0)[1]
    assert (claim.noise, claim.num_pairs, claim.old_s, claim.new_s) == (1.01, 8, tuple(FASTER), tuple(EQUAL))


def test_the_seed_is_the_bootstraps() -> None:
    assert claim_of(FASTER, EQUAL, seed=3).ci95 == paired_ratio(FASTER, EQUAL, seed=3)[1]
    assert claim_of(FASTER, EQUAL, seed=3).ci95 != claim_of(FASTER, EQUAL).ci95


def test_a_slowdown_is_the_ratio_turned_round() -> None:
    claim = Claim(verdict=Verdict.FAIL, ratio=0.5, ci95=(0.4, 0.8))
    assert claim.slowdown == 2.0
    assert claim.slowdown_ci95 == (1.25, 2.5)
    unknown = Claim(verdict=Verdict.INCONCLUSIVE)
    assert (unknown.slowdown, unknown.slowdown_ci95) == (None, None)


@pytest.mark.parametrize("verdict", Verdict)
def test_a_gain_is_a_claim_that_holds(verdict: Verdict) -> None:
    assert Claim(verdict=verdict).is_gain is (verdict is Verdict.PASS)


def test_a_claim_without_pairs_says_nothing() -> None:
    claim = Claim(verdict=Verdict.INCONCLUSIVE)
    assert (claim.noise, claim.num_pairs, claim.seconds, claim.load) == (1.0, 0, 0.0, NO_LOAD)
    assert not claim.is_clear


@pytest.mark.parametrize(
    ("noise", "verdict"),
    [
        (1.0, Verdict.PASS),
        (1.09, Verdict.PASS),
        (statistics.geometric_mean(FASTER), Verdict.INCONCLUSIVE),  # the gain must be above the noise
        (1.105, Verdict.INCONCLUSIVE),
        (1.2, Verdict.FAIL),  # the whole interval lies below what equal variants could show
        (1.3, Verdict.INCONCLUSIVE),  # where equal variants differ by so much, nothing is known
    ],
)
def test_a_gain_must_be_above_the_noise(noise: float, verdict: Verdict) -> None:
    assert claim_of(FASTER, EQUAL, noise=noise).verdict is verdict


def test_too_much_noise_begins_above_a_quarter() -> None:
    twice = [2 * ratio for ratio in FASTER]
    assert claim_of(twice, EQUAL, noise=MAX_NOISE).verdict is Verdict.PASS
    assert claim_of(twice, EQUAL, noise=1.26).verdict is Verdict.INCONCLUSIVE
    assert claim_of(FASTER, EQUAL, noise=MAX_NOISE).verdict is Verdict.FAIL


def test_what_is_slower_fails_however_loud_the_machine_is() -> None:
    assert claim_of(EQUAL, FASTER, noise=1.3).verdict is Verdict.FAIL


def test_equal_times_fail_unless_the_machine_is_too_loud_to_tell() -> None:
    silent = claim_of(EQUAL, EQUAL)
    assert (silent.ratio, silent.ci95, silent.p_value, silent.noise) == (1.0, (1.0, 1.0), 1.0, 1.0)
    assert silent.verdict is Verdict.FAIL
    assert claim_of(EQUAL, EQUAL, noise=1.3).verdict is Verdict.INCONCLUSIVE


def test_significance_without_an_interval_above_one_is_not_enough() -> None:
    """Nineteen pairs are won by 1 %, one is lost by 15 %: the ranks are sure, the mean is not."""
    old_s = [1.01] * 19 + [0.85]
    claim = claim_of(old_s, [1.0] * 20)
    assert claim.p_value is not None
    assert claim.ci95 is not None
    assert claim.ratio is not None
    assert claim.p_value < 0.05
    assert claim.ci95[0] < 1 < claim.ratio
    assert claim.verdict is Verdict.INCONCLUSIVE


def test_an_interval_above_one_without_significance_is_not_enough() -> None:
    claim = claim_of(FASTER[:5], EQUAL[:5])
    assert claim.p_value == pytest.approx(2 / 32)
    assert claim.ci95 is not None
    assert claim.ci95[0] > 1
    assert claim.verdict is Verdict.INCONCLUSIVE
