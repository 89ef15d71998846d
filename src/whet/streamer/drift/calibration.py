"""Find how far each measure moves on real frames without any drift, so that no more than that is called drift."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from whet.errors import TargetError
from whet.measure.frames import Frame
from whet.streamer.drift.measures import MEASURES
from whet.streamer.drift.meter import DriftMeter
from whet.streamer.drift.trend import MIN_SAMPLES, blocks, parts, resampled

ALARMS = 0.01  # the rate of false alarms, over all measures together
MIN_FRAMES = 60  # of a calibration
LATE = 4  # by how many frames its pairs are late
_RESAMPLES = 4000


@dataclass(frozen=True)
class Thresholds:
    """Hold how large a change of each measure must be before it can be called drift.

    Attributes:
        changes: The change of each measure between the first part and the last: a difference, or for a ratio the
            logarithm of a factor. Measures that are missing have their `Measure.least` alone.
        alarms: The rate of false alarms that the verdict is set for, over all measures together.
        num_frames: The number of real frames that the changes come from; 0 where there was no calibration.
        lateness: How far frames differ from those some frames before in each measure: the upper quartile, so that
            cuts do not count. A difference, or for a ratio the logarithm of a factor.
    """

    changes: Mapping[str, float] = field(default_factory=dict)
    alarms: float = ALARMS
    num_frames: int = 0
    lateness: Mapping[str, float] = field(default_factory=dict)


def calibrate(
    frames: Iterable[Frame], *, num_frames: int = 600, late: int = LATE, alarms: float = ALARMS, seed: int = 0
) -> Thresholds:
    """Find what a stream without drift shows on real frames, by comparing the frames with themselves, a little late.

    A stream that shows its input some frames late is as faithful as can be, and yet each measure moves with the
    footage. A moving-block bootstrap makes streams of such pairs, in which all measures of a frame stay together. The
    threshold is what the largest of all changes, each in units of its own scatter, exceeds in the share `alarms` of
    those streams.

    Args:
        frames: Successive frames of the input, in the convention of `whet.measure.frames`.
        num_frames: The length of the stream that will be judged.

    Raises:
        TargetError: There are fewer than 60 frames after the late ones.
    """
    meter = DriftMeter(num_frames)
    waiting: deque[Frame] = deque()
    count = 0
    for frame in frames:
        waiting.append(frame)
        if len(waiting) > late:
            meter.add(waiting.popleft(), frame)
            count += 1
    if count < MIN_FRAMES:
        raise TargetError(
            f"a calibration takes at least {MIN_FRAMES + late} frames, and there are {count + len(waiting)}"
        )
    series = meter.series()
    columns = {one.name: one.scale(series.values[one.name]) for one in MEASURES}
    known = {name: values for name, values in columns.items() if np.isfinite(values).sum() >= MIN_SAMPLES}
    if not known:
        return Thresholds({}, alarms, count)
    table = np.stack(list(known.values()), axis=1)
    length = max(blocks(values[np.isfinite(values)])[0] for values in known.values())
    size = parts(num_frames)
    first, last = (
        np.nanmean(_whole(resampled(table, min(length, len(table)), size, seed + which, resamples=_RESAMPLES)), axis=1)
        for which in (0, 1)
    )
    changes = np.abs(last - first)
    scatter = np.sqrt(np.square(changes).mean(axis=0))
    units = np.divide(changes, scatter, out=np.zeros_like(changes), where=scatter > 0).max(axis=1)
    limit = float(np.quantile(units, 1 - alarms))
    lateness = {name: float(np.nanquantile(np.abs(values), 0.75)) for name, values in known.items()}
    return Thresholds(
        {name: limit * float(one) for name, one in zip(known, scatter, strict=True)}, alarms, count, lateness
    )


def _whole(drawn: np.ndarray) -> np.ndarray:
    """Give each series without any value in a column that column's mean over all series, [resamples, n, measures]."""
    lacking = ~np.isfinite(drawn).any(axis=1)
    if lacking.any():
        drawn[:, 0, :] = np.where(lacking, np.nanmean(drawn, axis=(0, 1)), drawn[:, 0, :])
    return drawn
