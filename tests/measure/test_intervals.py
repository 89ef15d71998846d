"""Intervals and noise floors against SciPy's Student's t and a bootstrap whose resamples are all written out."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats

from whet.measure.stats import log_ratios, mean_interval, noise_floor, paired_ratio, ratio_noise, signed_rank

VALUES = [0.031, -0.012, 0.054, 0.007, 0.023, 0.041]


def students(values: list[float]) -> tuple[float, float]:
    """Return SciPy's 95 % interval of the mean."""
    low, high = scipy.stats.t.interval(0.95, len(values) - 1, np.mean(values), scipy.stats.sem(values))
    return float(low), float(high)


@pytest.mark.parametrize("num", [2, 3, 4, 5])
def test_below_six_values_the_interval_is_students(num: int) -> None:
    values = VALUES[:num]
    assert mean_interval(values) == pytest.approx(students(values))
    ratio, ci95 = paired_ratio(np.exp(values).tolist(), [1.0] * num)
    assert ratio == pytest.approx(math.exp(np.mean(values)))
    assert ci95 == pytest.approx(tuple(np.exp(students(values))))


def test_from_six_values_it_is_the_bootstraps_at_hesterbergs_levels() -> None:
    """All 6 ** 6 resamples give the exact quantiles; the average over seeds leaves little of the chance."""
    means = np.array([np.mean(resample) for resample in itertools.product(VALUES, repeat=6)])
    level = scipy.stats.norm.cdf(math.sqrt(6 / 5) * scipy.stats.t.ppf(0.025, 5))
    exact = np.quantile(means, [level, 1 - level])
    found = np.mean([mean_interval(VALUES, seed=seed) for seed in range(60)], axis=0)
    width = exact[1] - exact[0]
    assert found == pytest.approx(exact, abs=0.015 * width)
    seven = scipy.stats.norm.cdf(math.sqrt(6 / 5) * scipy.stats.t.ppf(0.025, 7))
    assert np.quantile(means, seven) - exact[0] > 0.03 * width, "the levels of other degrees of freedom lie further off"


def test_the_bootstrap_is_repeatable_and_depends_on_its_seed() -> None:
    assert mean_interval(VALUES) == mean_interval(VALUES, seed=0) != mean_interval(VALUES, seed=1)
    old_s, new_s = np.exp(VALUES).tolist(), [1.0] * 6
    assert paired_ratio(old_s, new_s) == paired_ratio(old_s, new_s, seed=0) != paired_ratio(old_s, new_s, seed=1)


def test_one_pair_has_no_limits() -> None:
    assert paired_ratio([2.0], [1.0]) == (pytest.approx(2.0), (0.0, math.inf))


@pytest.mark.parametrize("num", [2, 3, 6])
def test_the_noise_of_pairs_is_the_half_width_of_students_interval(num: int) -> None:
    values = VALUES[:num]
    low, high = students(values)
    assert ratio_noise(np.array(values)) == pytest.approx(math.exp((high - low) / 2))


def test_one_pair_has_no_noise_to_tell() -> None:
    with pytest.raises(ValueError, match="two pairs"):
        ratio_noise(np.array([0.1]))
    assert ratio_noise(np.array([0.1, 0.1])) == 1.0


def test_a_group_of_one_time_says_nothing_about_noise() -> None:
    group = [1.0, 1.1, 1.05, 1.2]
    assert noise_floor([[1.0], group]) == noise_floor([group, []]) == noise_floor([group]) > 1


def test_the_noise_floor_of_the_shortest_group_by_hand() -> None:
    """Neighbours differ by 10 %. By 2 m ** 2 / (3 m - 1), three tell as much as 2.25, and one as much as one."""
    quantile = scipy.stats.t.ppf(0.975, 2.25 + 1)
    floor = math.exp(quantile * math.log(1.1) / math.sqrt(2))
    assert noise_floor([[1.0, 1.1, 1.0, 1.1], [1.0, 1.1]]) == pytest.approx(floor)
    assert noise_floor([[1.0, 1.1], [1.0, 1.1]]) == pytest.approx(
        math.exp(scipy.stats.t.ppf(0.975, 2) * math.log(1.1) / math.sqrt(2))
    )


def test_pairs_without_a_difference_are_ranked_as_pratt_does() -> None:
    """They take the lowest ranks and count for neither side."""
    values = [0.0, 0.0, 0.1, 0.2, -0.3, 0.4, 0.5, 0.6]
    pratt, wilcox = (scipy.stats.wilcoxon(values, zero_method=name).pvalue for name in ("pratt", "wilcox"))
    assert signed_rank(values) == pytest.approx(pratt)
    assert abs(pratt - wilcox) > 0.001
    assert signed_rank([0.0] * 6) == 1.0


def test_a_log_ratio_is_above_zero_where_the_variant_is_faster() -> None:
    assert log_ratios([2.0, 1.0], [1.0, 2.0]) == pytest.approx([math.log(2), -math.log(2)])


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
@pytest.mark.parametrize("side", ["original", "variant"])
def test_every_time_must_be_positive_and_finite(bad: float, side: str) -> None:
    good, spoiled = [1.0, 2.0], [1.0, bad]
    with pytest.raises(ValueError, match="times must be positive and finite"):
        log_ratios(*((spoiled, good) if side == "original" else (good, spoiled)))


def test_pairs_must_be_complete() -> None:
    for original, variant in (([], []), ([1.0], []), ([1.0, 2.0], [1.0])):
        with pytest.raises(ValueError, match=f"pairs wanted, got {len(original)} and {len(variant)} times"):
            log_ratios(original, variant)
