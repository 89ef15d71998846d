"""Compute how far a variant's quality differs from the original's, and what the samples of the evaluation can show.

Both are scored on the same samples, so the difference is paired by sample. The drop is exact on those samples. An
interval says what it is on other samples of the same kind.

Sources: Tango, "Equivalence test and confidence interval for the difference in proportions for the paired-sample
design" (Statistics in Medicine, 1998), for scores of two values; Hesterberg (2015), as in measure.stats, for others.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from whet.measure.stats import mean_interval
from whet.tuner.records import QualityChange

_Z = 1.959963984540054  # the normal quantile of a 95 % interval
_FEW = 6  # if fewer samples than this differ, their spread says nothing about samples that were not drawn
_MOST_SAMPLES = 10**9


def quality_change(
    original: Sequence[float], variant: Sequence[float], *, higher_is_better: bool, max_drop: float
) -> QualityChange | None:
    """Compare the scores of the same samples, in the same order.

    Where scores have two values (right or wrong), or fewer than six samples differ, each sample that differs counts as
    one flip of the whole range of scores: identical scores on 64 samples do not prove that no other sample differs.

    Args:
        max_drop: The drop that is allowed, as a fraction of the original's score.

    Returns:
        The drop with its interval, as fractions of the original's score; None where the two cannot be paired.
    """
    a, b = np.asarray(original, dtype=float), np.asarray(variant, dtype=float)
    if len(a) != len(b) or len(a) < 2:
        return None
    worse = a - b if higher_is_better else b - a
    scale = abs(float(a.mean())) or 1.0
    num_worse, num_better = int((worse > 0).sum()), int((worse < 0).sum())
    drop = float(worse.mean()) / scale
    values = np.unique(np.concatenate([a, b]))
    if len(values) <= 2 or num_worse + num_better < _FEW:
        # If all scores are equal, they are all hits (1), all misses (0) or another constant.
        size = float(np.ptp(values)) or max(1.0 if values[0] == 0 else abs(float(values[0])), 0.0)
        unit = size / scale

        def interval(num: float) -> tuple[float, float]:
            share = num / len(a)
            low, high = tango_interval(num_worse * share, num_better * share, num)
            return unit * low, unit * high
    else:
        low, high = (end / scale for end in mean_interval(worse.tolist()))

        def interval(num: float) -> tuple[float, float]:
            narrower = math.sqrt(len(a) / num)
            return drop + (low - drop) * narrower, drop + (high - drop) * narrower

    return QualityChange(
        drop=drop,
        ci95=interval(len(a)),
        num_samples=len(a),
        num_worse=num_worse,
        num_better=num_better,
        is_shown=interval(len(a))[1] <= max_drop,
        needed_samples=_needed(interval, len(a), max_drop),
    )


def tango_interval(num_worse: float, num_better: float, num: float) -> tuple[float, float]:
    """Return Tango's 95 % score interval of (num_worse - num_better) / num, from `num` paired hits and misses."""
    return -_tango_limit(num_better, num_worse, num), _tango_limit(num_worse, num_better, num)


def _tango_limit(b: float, c: float, num: float) -> float:
    """Return the largest difference that the score test does not reject; `b` of `num` pairs raise it, `c` lower it."""

    def is_rejected(difference: float) -> bool:
        linear = -b - c + (2 * num - b + c) * difference
        constant = -c * difference * (1 - difference)
        share = (math.sqrt(max(0.0, linear**2 - 8 * num * constant)) - linear) / (4 * num)
        variance = num * (2 * share + difference * (1 - difference))
        return variance <= 0 or (b - c - num * difference) ** 2 > _Z**2 * variance

    low, high = (b - c) / num, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if is_rejected(middle) else (middle, high)
    return high


def _needed(interval: Callable[[float], tuple[float, float]], num: int, max_drop: float) -> int | None:
    """Return about how many samples, differing as often as these, would show that the limit holds; or None."""
    if interval(num)[1] <= max_drop:
        return None
    low, high = num, _MOST_SAMPLES
    if interval(high)[1] > max_drop:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if interval(middle)[1] <= max_drop else (middle, high)
    return high
