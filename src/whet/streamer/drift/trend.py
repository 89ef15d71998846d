"""Estimate how far a measure moves over a stream, and how far it would move by chance if the stream were stationary.

Successive frames resemble each other, so their values are no independent samples. The scatter of an estimate comes from
a moving-block bootstrap of the residuals about a polynomial of the third degree, which keeps neighbours together and
takes a real drift away, so that a drift does not hide itself. Student's quantile with as many degrees of freedom as
there are blocks, less those of the polynomial, then widens the interval, because few blocks underestimate their own
scatter.

Sources: Künsch, "The jackknife and the bootstrap for general stationary observations" (1989), on moving blocks;
Hesterberg, "What Teachers Should Know About the Bootstrap" (2015), on widening; the difference between the first and
the last 15 % of a video is the drift of FramePack (Zhang and Agrawala, 2025).
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy

Array = npt.NDArray[np.float64]

PART = 0.15  # of the frames, at the beginning and at the end
MIN_SAMPLES = 8  # values that each of the two parts must have
_CONFIDENCE = 0.95  # of the interval of the slope
_RESAMPLES = 1000
_TIMES = 5  # a block is as long as so many correlation times
_SHORTEST = 20  # values in a block, where there are enough
_MIN_BLOCKS = 10
_DEGREE = 3  # of the polynomial whose residuals are resampled


@dataclass(frozen=True)
class Trend:
    """Describe how one measure moves over a stream.

    Attributes:
        first: The mean of the first 15 % of the frames.
        last: The mean of the last 15 % of the frames.
        chance: How far `last` differs from `first` by chance if the stream is stationary, at the level asked for.
        slope: The change over the whole stream by a straight line, less what the scene explains where it was given.
        slope_interval: The 95 % interval of the slope.
        slope_chance: How large the slope is by chance if the stream is stationary, at the level asked for.
    """

    first: float
    last: float
    chance: float
    slope: float
    slope_interval: tuple[float, float]
    slope_chance: float

    @property
    def change(self) -> float:
        return self.last - self.first


def parts(num_frames: int) -> int:
    """Return the number of frames in the first part of a stream, which is that of the last part too."""
    return max(1, round(PART * num_frames))


def estimate(values: Array, *, level: float, seed: int, scene: Array | None = None) -> Trend | None:
    """Estimate how a measure moves.

    Args:
        values: The measure of each frame, [frames]. NaN stands for frames that were not measured.
        level: The probability of a change beyond `Trend.chance` in a stationary stream, both directions together.
        scene: A number for each frame, [frames], that says where the input stands between the scene at the beginning
            and the one at the end. The slope then leaves out what is proportional to it.

    Returns:
        The trend; None if the first or the last 15 % of the frames have fewer than 8 values.
    """
    num_frames = len(values)
    at = np.flatnonzero(np.isfinite(values))
    is_first, is_last = at < parts(num_frames), at >= num_frames - parts(num_frames)
    if min(is_first.sum(), is_last.sum()) < MIN_SAMPLES:
        return None
    found = values[at]
    time = at / (num_frames - 1) - 0.5
    columns = [np.ones_like(time), time]
    if scene is not None and np.ptp(scene[at]) > 0:
        columns.append(scene[at] - scene[at].mean())
    solve = np.linalg.pinv(np.stack(columns, axis=1))
    design = np.stack([*columns, *(time**power for power in range(2, _DEGREE + 1))], axis=1)
    residuals = found - design @ (np.linalg.pinv(design) @ found)
    weights = np.stack([is_last / is_last.sum() - is_first / is_first.sum(), solve[1]], axis=1)
    length, correlated = blocks(residuals)
    scatter = (resampled(residuals, length, len(at), seed) @ weights).std(axis=0)
    # Blocks miss what reaches over their ends, and the polynomial has taken a part of their slow movements away.
    missed = min(0.5, correlated / (2 * length))
    fitted = min(0.5, design.shape[1] * length / len(at))
    scatter /= math.sqrt((1 - missed) * (1 - fitted))
    freedom = len(at) / length - design.shape[1]
    slope = float(solve[1] @ found)
    wide, narrow = (float(scipy.special.stdtrit(freedom, 1 - p / 2)) for p in (level, 1 - _CONFIDENCE))
    return Trend(
        first=float(found[is_first].mean()),
        last=float(found[is_last].mean()),
        chance=wide * float(scatter[0]),
        slope=slope,
        slope_interval=(slope - narrow * float(scatter[1]), slope + narrow * float(scatter[1])),
        slope_chance=wide * float(scatter[1]),
    )


def blocks(values: Array) -> tuple[int, float]:
    """Return the length of the blocks of a bootstrap, and the correlation time, both in values.

    The correlation time is 1 + 2 Σ ρ(k), summed until ρ(k) first falls to the scatter that it has in white noise. A
    block is five times as long, at least 20 values, and at most a tenth of all.
    """
    num = len(values)
    longest = max(1, num // _MIN_BLOCKS)
    centred = values - values.mean()
    power = float(centred @ centred)
    time = 1.0
    for lag in range(1, longest if power > 0 else 1):
        correlation = float(centred[lag:] @ centred[:-lag]) / power
        if correlation < 1 / math.sqrt(num):
            break
        time += 2 * correlation
    return min(longest, max(_SHORTEST, math.ceil(_TIMES * time))), time


def resampled(values: Array, length: int, num: int, seed: int, *, resamples: int = _RESAMPLES) -> Array:
    """Draw series from blocks of neighbours, by the moving-block bootstrap.

    Args:
        values: The values, [n] or [n, measures]. All measures of a frame stay together.
        length: The length of a block.
        num: The length of each series.

    Returns:
        The series, [resamples, num] or [resamples, num, measures].
    """
    random = np.random.default_rng(seed)
    starts = random.integers(0, len(values) - length + 1, (resamples, math.ceil(num / length)))
    at = (starts[:, :, None] + np.arange(length)).reshape(resamples, -1)[:, :num]
    drawn: Array = values[at]
    return drawn
