"""Verdicts on simulated machines whose truth is known, and figures against scipy, numpy and the standard library."""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from whet.comparison.claim import Verdict, claim_of
from whet.measure.stats import noise_floor, paired_ratio, percentile, signed_rank

times = st.floats(1e-6, 1e3)
pairs = st.lists(st.tuples(times, times), min_size=1, max_size=7)


def simulated_pairs(
    random: np.random.Generator, num_pairs: int, *, gain: float = 1.0, sd: float = 0.02, trend: float = 0.0
) -> tuple[list[float], list[float]]:
    """Times of an original and of a variant that is `gain` times faster, side by side in random order.

    Each process has lognormal noise of `sd`, and the machine gets slower by `trend` from one process to the next.
    """
    original, variant = [], []
    seconds = np.exp(random.normal(0, sd, 2 * num_pairs) + trend * np.arange(2 * num_pairs))
    for first, second in seconds.reshape(-1, 2):
        swapped = random.random() < 0.5
        original.append(second if swapped else first)
        variant.append((first if swapped else second) / gain)
    return original, variant


def verdicts(seed: int, num_pairs: int, num_runs: int = 100, **machine: float) -> Counter[Verdict]:
    """Verdicts of `num_runs` comparisons, each with the noise floor of its own times."""
    random = np.random.default_rng(seed)
    counted: Counter[Verdict] = Counter()
    for run in range(num_runs):
        original, variant = simulated_pairs(random, num_pairs, **machine)
        counted[claim_of(original, variant, noise=noise_floor([original]), seed=run).verdict] += 1
    return counted


@given(pairs, st.floats(1e-3, 1e3))
def test_the_unit_of_time_does_not_matter(samples: list[tuple[float, float]], scale: float) -> None:
    a, b = zip(*samples, strict=True)
    one = claim_of(a, b)
    other = claim_of([x * scale for x in a], [x * scale for x in b])
    assert other.ratio == pytest.approx(one.ratio, rel=1e-9)
    assert other.ci95 == pytest.approx(one.ci95, rel=1e-6)


@given(pairs)
def test_swapping_the_two_inverts_the_ratio(samples: list[tuple[float, float]]) -> None:
    a, b = zip(*samples, strict=True)
    one, other = claim_of(a, b), claim_of(b, a)
    assert other.ratio == pytest.approx(1 / one.ratio, rel=1e-9)
    assert other.p_value == pytest.approx(one.p_value)


@given(pairs)
def test_the_interval_holds_the_ratio_and_the_ratio_lies_among_the_pairs(samples: list[tuple[float, float]]) -> None:
    a, b = zip(*samples, strict=True)
    found = claim_of(a, b)
    low, high = found.ci95
    assert low <= found.ratio * (1 + 1e-9)
    assert found.ratio <= high * (1 + 1e-9)
    ratios = [x / y for x, y in samples]
    assert min(ratios) * (1 - 1e-9) <= found.ratio <= max(ratios) * (1 + 1e-9)
    assert found.num_pairs == len(samples)


@given(pairs, st.integers(0, 3))
def test_the_ratio_alone_is_that_of_the_comparison(samples: list[tuple[float, float]], seed: int) -> None:
    a, b = zip(*samples, strict=True)
    found = claim_of(a, b, seed=seed)
    assert paired_ratio(a, b, seed=seed) == (found.ratio, found.ci95)


@given(pairs, st.floats(1.01, 10))
def test_a_faster_variant_has_a_higher_ratio(samples: list[tuple[float, float]], factor: float) -> None:
    a, b = zip(*samples, strict=True)
    assert claim_of(a, [x / factor for x in b]).ratio == pytest.approx(claim_of(a, b).ratio * factor, rel=1e-9)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30), st.integers(1, 99))
def test_percentile_is_the_standard_librarys_inclusive_one(samples: list[float], percent: int) -> None:
    expected = statistics.quantiles(samples, n=100, method="inclusive")[percent - 1]
    assert percentile(samples, percent) == pytest.approx(expected, rel=1e-9, abs=1e-6)
    assert percentile(samples, 0) == min(samples)
    assert percentile(samples, 100) == max(samples)


@given(st.lists(times, min_size=1, max_size=30))
def test_percentiles_rise(samples: list[float]) -> None:
    found = [percentile(samples, p) for p in range(0, 101, 10)]
    assert all(a <= b * (1 + 1e-12) for a, b in itertools.pairwise(found))


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=20))
def test_the_ratio_is_the_standard_librarys_geometric_mean(ratios: list[float]) -> None:
    assert paired_ratio(ratios, [1.0] * len(ratios))[0] == pytest.approx(statistics.geometric_mean(ratios), rel=1e-9)


def test_signed_rank_by_hand() -> None:
    # Six gains: only all of one sign are as extreme, 2 of 2 ** 6 ways. Seven, the smallest reversed: 4 of 2 ** 7.
    assert signed_rank([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]) == pytest.approx(2 / 64)
    assert signed_rank([-0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]) == pytest.approx(4 / 128)


def test_signed_rank_is_scipys() -> None:
    logs = np.random.default_rng(0).normal(0.01, 0.03, 10)
    assert signed_rank(logs) == pytest.approx(float(scipy.stats.wilcoxon(logs).pvalue))


@pytest.mark.parametrize("logs", [[0.0], [0.0, 0.0], [0.0, 0.1], [0.1, 0.1, 0.0], [0.1] * 60])
def test_signed_rank_of_ties_and_zeros_is_a_probability(logs: list[float]) -> None:
    assert 0 <= signed_rank(logs) <= 1


@pytest.mark.parametrize("num_pairs", [2, 3, 4, 5, 6, 8, 12])
def test_the_interval_covers_the_truth_as_often_as_it_says(num_pairs: int) -> None:
    random = np.random.default_rng(num_pairs)
    covered = 0
    for run in range(400):
        original, variant = simulated_pairs(random, num_pairs, gain=1.1, sd=0.03)
        low, high = claim_of(original, variant, seed=run).ci95
        covered += low <= 1.1 <= high
    assert covered >= 0.92 * 400


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("num_pairs", [6, 7, 8])
def test_the_same_code_is_not_called_faster(num_pairs: int, seed: int) -> None:
    assert verdicts(seed, num_pairs)[Verdict.PASS] <= 5


@pytest.mark.parametrize("num_pairs", [6, 8])
def test_a_machine_that_slows_down_gives_no_false_gain(num_pairs: int) -> None:
    assert verdicts(1, num_pairs, trend=0.03)[Verdict.PASS] <= 5


def test_a_real_gain_is_found() -> None:
    assert verdicts(2, 6, gain=1.1)[Verdict.PASS] >= 95
    assert verdicts(3, 8, gain=1.1)[Verdict.PASS] >= 98


def test_a_real_gain_is_found_on_a_machine_that_slows_down() -> None:
    assert verdicts(4, 8, gain=1.1, trend=0.02)[Verdict.PASS] >= 95


def test_a_slower_variant_fails() -> None:
    counted = verdicts(5, 8, gain=1 / 1.1)
    assert counted[Verdict.FAIL] >= 98
    assert counted[Verdict.PASS] == 0


def test_equal_times_fail_with_a_ratio_of_one() -> None:
    found = claim_of([3.0] * 8, [3.0] * 8)
    assert found.ratio == 1
    assert found.ci95 == (1, 1)
    assert found.p_value == 1
    assert found.verdict is Verdict.FAIL


def test_one_pair_proves_nothing() -> None:
    found = claim_of([2.0], [1.0])
    assert found.ratio == pytest.approx(2)
    assert found.ci95 == (0, math.inf)
    assert found.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("num_pairs", [2, 3, 4, 5])
def test_under_six_pairs_prove_nothing_however_clear(num_pairs: int) -> None:
    original = [2.0 + 0.01 * i for i in range(num_pairs)]
    assert claim_of(original, [1.0] * num_pairs).verdict is Verdict.INCONCLUSIVE
    assert claim_of([*original, 2.1, 2.2, 2.3, 2.4], [1.0] * (num_pairs + 4)).verdict is Verdict.PASS


def test_a_gain_within_the_noise_does_not_pass() -> None:
    original = [1.01, 1.02, 1.03, 1.02, 1.01, 1.03, 1.02, 1.02]
    assert claim_of(original, [1.0] * 8, noise=1.01).verdict is Verdict.PASS
    assert claim_of(original, [1.0] * 8, noise=1.021).verdict is Verdict.INCONCLUSIVE
    assert claim_of(original, [1.0] * 8, noise=1.1).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("original", "variant"),
    [
        ([], []),
        ([1.0], []),
        ([1.0, 2.0], [1.0]),
        ([0.0], [1.0]),
        ([1.0], [-1.0]),
        ([math.nan], [1.0]),
        ([math.inf], [1.0]),
    ],
)
def test_times_that_are_none_are_refused(original: Sequence[float], variant: Sequence[float]) -> None:
    with pytest.raises(ValueError, match=r"pairs|positive"):
        claim_of(original, variant)


def test_the_noise_floor_by_hand() -> None:
    # Neighbours differ by 10 % each way, so the mean of n such pairs lies within t * 10 % / sqrt(n) of none, with t
    # towards 1.96 from many neighbours, and 3.88 from three, which tell as much as 2 * 9 / 8 = 2.25 independent ones.
    step = math.log(1.1)
    many = [1.0, 1.1] * 5000
    assert noise_floor([many], num_pairs=4) == pytest.approx(math.exp(1.96 * step / 2), rel=1e-4)
    assert noise_floor([many], num_pairs=16) == pytest.approx(math.exp(1.96 * step / 4), rel=1e-4)
    few = [1.0, 1.1, 1.0, 1.1]
    t = float(scipy.stats.t.ppf(0.975, 2.25))
    assert noise_floor([few]) == pytest.approx(math.exp(t * step / 2))
    assert noise_floor([few, many]) == pytest.approx(math.exp(1.96 * step / 2), rel=1e-4)


def test_the_noise_floor_of_too_few_times_is_unknown() -> None:
    assert noise_floor([]) == noise_floor([[1.0]]) == noise_floor([[1.0, 2.0]]) == noise_floor([[], [1.0]]) == 1.0
    assert noise_floor([[1.0, 1.0, 1.0]]) == 1.0


@given(st.lists(times, min_size=3, max_size=12), st.floats(1e-3, 1e3))
def test_the_noise_floor_has_no_unit_and_is_no_gain(group: list[float], scale: float) -> None:
    assert noise_floor([group]) >= 1
    assert noise_floor([[t * scale for t in group]]) == pytest.approx(noise_floor([group]), rel=1e-9)


@pytest.mark.parametrize("num_pairs", [4, 8, 16])
def test_the_same_code_stays_below_the_noise_floor_as_often_as_it_says(num_pairs: int) -> None:
    random = np.random.default_rng(num_pairs)
    beyond = 0
    for _ in range(1000):
        original, variant = simulated_pairs(random, num_pairs)
        again, _ = simulated_pairs(random, num_pairs)
        ratio = statistics.geometric_mean(a / b for a, b in zip(original, variant, strict=True))
        beyond += max(ratio, 1 / ratio) > noise_floor([again])
    assert beyond / 1000 == pytest.approx(0.05, abs=0.025)
