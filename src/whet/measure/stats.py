"""Is it faster? Paired ratios, their interval, a signed-rank test, and the machine's own noise.

The replicate is the process: one pair is the original and the variant, each measured in a process of its own, one
right after the other. A verdict wants three things at once: the interval beyond 1, the signed-rank test below 5%
(which takes at least six pairs), and a gain larger than what as many pairs of the *same* code would show here. Where
the same code differs from itself by more than a quarter, nothing is called faster.

Sources: Kalibera and Jones, "Rigorous Benchmarking in Reasonable Time" (ISMM 2013), on the level of replication;
Hesterberg, "What Teachers Should Know About the Bootstrap" (2015), on widening percentile intervals of small samples.
"""

import math
from collections.abc import Sequence

import numpy as np
import scipy

MAX_NOISE = 1.25  # beyond that, runs of the same code scatter too much for any verdict in favour of a variant
_CONFIDENCE = 0.95
_RESAMPLES = 4000
_MIN_RESAMPLED = 6  # resamples of fewer pairs cannot leave their range, which misses the mean once in 2 ** (pairs - 1)


def paired_ratio(
    original: Sequence[float], variant: Sequence[float], *, seed: int = 0
) -> tuple[float, tuple[float, float]]:
    """Return how many times faster the variant is, as the geometric mean of the pairs, and the 95% interval of that.

    Args:
        original: Times; original[i] and variant[i] were taken side by side. Any one unit will do.
        seed: Of the bootstrap.

    Returns:
        The ratio original / variant, and its bootstrap interval: Student's t below six pairs, without limits for one.

    Raises:
        ValueError: The samples are empty, of unequal length, or hold times that are not positive and finite.
    """
    logs = log_ratios(original, variant)
    low, high = _interval(logs, seed)
    return math.exp(float(logs.mean())), (math.exp(low), math.exp(high))


def noise_floor(groups: Sequence[Sequence[float]], *, num_pairs: int | None = None) -> float:
    """Return the ratio that pairs of the same code could show by chance, from times in successive processes.

    Neighbours in a group are A/A pairs. The floor is the half-width of the 95 % interval of the mean of
    `num_pairs` such pairs.

    Args:
        groups: One sequence of times for each variant, in the order of measurement.
        num_pairs: The number of pairs; as many as the shortest group has times, if not given.

    Returns:
        The ratio; 1.0, for unknown, with fewer than two neighbours.
    """
    groups = [g for g in groups if len(g) > 1]
    logs = np.concatenate([np.diff(np.log(np.asarray(g, dtype=float))) for g in groups] or [np.empty(0)])
    if len(logs) < 2:
        return 1.0
    num_pairs = num_pairs or min(map(len, groups))
    # Differences between neighbours have twice the variance of one run, as a pair's ratio does. Their mean is not
    # taken off: with a drift it is what the pairs, taken in random order, suffer from too. Neighbouring differences
    # share a run, so m of them tell as much about the variance as 2 m^2 / (3 m - 1) would on their own (von Neumann).
    spread = math.sqrt(float(np.mean(np.square(logs))))
    freedom = sum(2 * (len(g) - 1) ** 2 / (3 * (len(g) - 1) - 1) for g in groups)
    return math.exp(float(scipy.special.stdtrit(freedom, (1 + _CONFIDENCE) / 2)) * spread / math.sqrt(num_pairs))


def ratio_noise(logs: np.ndarray) -> float:
    """Return the ratio that as many pairs of equal variants could show by chance, from the scatter of their log ratios.

    It is the half-width of Student's 95 % interval of the mean.

    Raises:
        ValueError: There are fewer than two pairs.
    """
    if len(logs) < 2:
        raise ValueError("two pairs at the least")
    quantile = float(scipy.special.stdtrit(len(logs) - 1, (1 + _CONFIDENCE) / 2))
    return math.exp(quantile * float(logs.std(ddof=1)) / math.sqrt(len(logs)))


def mean_interval(values: Sequence[float], *, seed: int = 0) -> tuple[float, float]:
    """Return the 95% interval of the mean of at least two values, as `compare` has it of log ratios."""
    return _interval(np.asarray(values, dtype=float), seed)


def signed_rank(logs: Sequence[float] | np.ndarray) -> float:
    """Return the two-sided p-value of Wilcoxon's signed-rank test that the log ratios are centred at zero."""
    values = np.asarray(logs, dtype=float)
    if not np.any(values):
        return 1.0
    return float(scipy.stats.wilcoxon(values, zero_method="pratt").pvalue)


def percentile(samples: Sequence[float], percent: float) -> float:
    """Return a percentile of raw samples, linear between neighbours. No sample is dropped."""
    return float(np.percentile(np.asarray(samples, dtype=float), percent))


def log_ratios(original: Sequence[float], variant: Sequence[float]) -> np.ndarray:
    """Return log(original / variant) for each pair.

    Raises:
        ValueError: The samples are empty, of unequal length, or hold times that are not positive and finite.
    """
    if len(original) != len(variant) or not original:
        raise ValueError(f"pairs wanted, got {len(original)} and {len(variant)} times")
    if not all(0 < time < math.inf for time in (*original, *variant)):
        raise ValueError("times must be positive and finite")
    logs: np.ndarray = np.log(np.asarray(original, dtype=float) / np.asarray(variant, dtype=float))
    return logs


def _interval(logs: np.ndarray, seed: int) -> tuple[float, float]:
    """Return the 95 % interval of the mean: bootstrap percentiles, widened as by Hesterberg (2015, section 5.3)."""
    num = len(logs)
    if num == 1:
        return -math.inf, math.inf
    tail = (1 - _CONFIDENCE) / 2
    if num < _MIN_RESAMPLED:
        center = float(logs.mean())
        half = -float(scipy.special.stdtrit(num - 1, tail) * logs.std(ddof=1)) / math.sqrt(num)
        return center - half, center + half
    random = np.random.default_rng(seed)
    means = logs[random.integers(0, num, (_RESAMPLES, num))].mean(axis=1)
    widened = scipy.special.ndtr(math.sqrt(num / (num - 1)) * scipy.special.stdtrit(num - 1, tail))
    low, high = np.quantile(means, [widened, 1 - widened])
    return float(low), float(high)
