"""Judge a stream: no drift, drift in which measures and from which frame on, or inconclusive and why."""

import math
from dataclasses import dataclass, replace

import numpy as np

from whet.streamer.drift.calibration import Thresholds
from whet.streamer.drift.departure import Departure, departures
from whet.streamer.drift.measures import LAGS, MEASURES, Measure
from whet.streamer.drift.meter import Series
from whet.streamer.drift.trend import PART, Array, Trend, estimate, parts
from whet.ui.figures import percent

MIN_FRAMES = 120  # of a stream, for a verdict
_MIN_MOVED = 0.5  # of the frames: with fewer, a stopped output cannot be told from a stopped input
_OTHER_SCENE = 0.35  # Hellinger distance of the input's colours at the beginning and at the end
_REPEATS = 0.1  # an output that differs from its last frames by so little of what the input does repeats itself
_RUN = 16  # frames in a row for that
_STAYS = 0.9  # of the frames after an onset lie beyond the threshold


@dataclass(frozen=True)
class MeasureResult:
    """Say how one measure moved.

    Attributes:
        trend: Its trend, on the scale of `Measure.scale`; None where too few frames were measured.
        threshold: The change beyond which it counts as drift, on the same scale; infinite without a trend.
        from_frame: The frame from which on, from 0; None without drift.
        why_not: Why a change beyond the threshold does not count; "" otherwise.
    """

    measure: Measure
    trend: Trend | None
    threshold: float
    is_drift: bool = False
    from_frame: int | None = None
    why_not: str = ""


@dataclass(frozen=True)
class Verdict:
    """Say whether a stream drifts.

    Attributes:
        word: "no drift", "drift" or "inconclusive".
        reasons: What the verdict rests on, a sentence each.
        repeats_from: The frame from which on the output stood still or ran in a loop while the input moved.
        from_frame: The frame from which on the stream drifts, by the earliest measure; None without drift.
    """

    word: str
    reasons: tuple[str, ...]
    results: tuple[MeasureResult, ...]
    repeats_from: int | None = None
    from_frame: int | None = None
    departures: tuple[Departure, ...] = ()


def judge(series: Series, thresholds: Thresholds | None = None, *, seed: int = 0) -> Verdict:
    """Judge a stream. Without thresholds, only rounding and chance count.

    A measure drifts if its means over the first and the last 15 % of the frames differ by more than three things: by
    what the calibration saw on real frames, by what rounding explains, and by what a stationary series with the same
    scatter would show by chance. The rate of false alarms over all measures together is `Thresholds.alarms` (1 %):
    each measure has its share of it. If the input shows another scene at the end than at the beginning, the slope
    without the scene's part must be as large too. An output that stands still or runs in a loop for 16 frames, while
    the input moves, is drift as well. So is a stream that leaves what its model makes of single frames, from whichever
    frame on.
    """
    thresholds = thresholds or Thresholds()
    num_frames = series.num_frames
    repeats_from = _repeats(series)
    if num_frames < MIN_FRAMES:
        results = tuple(MeasureResult(one, None, math.inf) for one in MEASURES)
    else:
        results = tuple(_result(one, series, thresholds, seed) for one in MEASURES)
    departing = tuple(departures(series.alone, thresholds))
    found = _findings(series, results, repeats_from, departing)
    if found:
        starts = [one.from_frame for one in results if one.from_frame is not None]
        starts += [at for at in (repeats_from, series.broken_from) if at is not None]
        starts += [one.from_frame for one in departing]
        others = {one.name: one.from_frame for one in departing}
        if repeats_from is not None:
            others["repetition"] = repeats_from
        results = tuple(_also(one, others.get(one.measure.name)) for one in results)
        return Verdict("drift", tuple(found), results, repeats_from, min(starts), departing)
    doubts = _doubts(series, results)
    if doubts:
        return Verdict("inconclusive", tuple(doubts), results)
    calm = f"No measure changed by more than footage, rounding and chance explain over {num_frames} frames."
    return Verdict("no drift", (calm,), results)


def _result(measure: Measure, series: Series, thresholds: Thresholds, seed: int) -> MeasureResult:
    values = measure.scale(series.values[measure.name])
    is_other = series.scene_change > _OTHER_SCENE
    level = thresholds.alarms / len(MEASURES)
    trend = estimate(values, level=level, seed=seed, scene=series.scene if is_other else None)
    if trend is None:
        return MeasureResult(measure, None, math.inf)
    floor = max(measure.least, thresholds.changes.get(measure.name, 0.0))
    threshold = max(floor, trend.chance)
    if abs(trend.change) <= threshold:
        return MeasureResult(measure, trend, threshold)
    if is_other:
        steady = trend.slope * (1 - PART)  # from the middle of the first part to the middle of the last
        if steady * trend.change <= 0 or abs(steady) <= max(floor, trend.slope_chance * (1 - PART)):
            return MeasureResult(measure, trend, threshold, why_not="the input's scene changed along with it")
    return MeasureResult(measure, trend, threshold, True, _onset(values, trend, threshold))


def _onset(values: Array, trend: Trend, threshold: float) -> int:
    """Return the first frame from which on nine tenths of the frames, smoothed, lie beyond the threshold."""
    num = len(values)
    half = max(1, parts(num) // 6)
    at = np.flatnonzero(np.isfinite(values))
    middle = [float(np.median(values[at[(at >= i - half) & (at <= i + half)]])) for i in at]
    beyond = (np.array(middle) - trend.first) * math.copysign(1, trend.change) > threshold
    share = np.cumsum(beyond[::-1])[::-1] / np.arange(len(beyond), 0, -1)
    starts = np.flatnonzero(beyond & (share >= _STAYS))
    return int(at[starts[0]]) if len(starts) else num - parts(num)


def _also(result: MeasureResult, from_frame: int | None) -> MeasureResult:
    """Return a result as drift from a frame on, or from an earlier one that is known; None changes nothing."""
    if from_frame is None:
        return result
    known = from_frame if result.from_frame is None else min(from_frame, result.from_frame)
    return replace(result, is_drift=True, from_frame=known, why_not="")


def _repeats(series: Series) -> int | None:
    """Return from where on the output repeats itself while the input moves, by the first sign; None without one."""
    signs = [_short_loop(series), None if series.loop is None else series.loop.from_frame]
    return min((at for at in signs if at is not None), default=None)


def _short_loop(series: Series) -> int | None:
    """Return where the first 16 moving frames in a row begin whose output repeats itself; None without them."""
    ratios = series.values["repetition"]
    moving = np.flatnonzero(series.moved)
    run = 0
    for place, repeats in enumerate(ratios[moving] < _REPEATS):
        run = run + 1 if repeats else 0
        if run == _RUN:
            return int(moving[place - _RUN + 1])
    return None


def _findings(
    series: Series, results: tuple[MeasureResult, ...], repeats_from: int | None, departing: tuple[Departure, ...]
) -> list[str]:
    """Return what speaks for drift."""
    found = []
    if series.broken_from is not None:
        found.append(f"From frame {series.broken_from} on, outputs are not finite or leave [0, 1].")
    if repeats_from is not None:
        is_long = series.loop is not None and series.loop.from_frame == repeats_from
        what = f"of {series.loop.num_frames}" if is_long and series.loop is not None else f"of at most {LAGS}"
        what = f"runs in a loop {what} frames" if is_long else f"stands still or runs in a loop {what} frames"
        found.append(f"From frame {repeats_from} on, the output {what}, while the input moves.")
    measures = {one.name: one for one in MEASURES}
    found += [
        f"From frame {one.from_frame} on, {measures[one.name].title.lower()} departs by "
        f"{amount(measures[one.name], one.size, is_size=True)} from what the model makes of the same frames alone; "
        f"up to {amount(measures[one.name], one.limit, is_size=True)} would be no drift."
        for one in departing
    ]
    found += [
        f"{one.measure.title} {amount(one.measure, one.trend.change)} from frame {one.from_frame} on; "
        f"up to {amount(one.measure, one.threshold, is_size=True)} would be no drift."
        for one in results
        if one.is_drift and one.trend is not None
    ]
    return found


def _doubts(series: Series, results: tuple[MeasureResult, ...]) -> list[str]:
    """Return why nothing can be said, for a stream in which no drift was found."""
    doubts = []
    if series.num_frames < MIN_FRAMES:
        return [f"There are {series.num_frames} frames; a verdict takes at least {MIN_FRAMES}."]
    moved = float(series.moved.mean())
    if moved < _MIN_MOVED:
        doubts.append(
            f"The input moved in {percent(moved, decimals=0)} of the frames: an output that stands still or loops "
            "would not be seen. Use an input that moves."
        )
    changed = [one.measure.title.lower() for one in results if one.why_not]
    if changed:
        doubts.append(
            f"The input shows another scene at the end than at the beginning, and what changed ({', '.join(changed)}) "
            "may come from that. Use an input that shows the same scene, or repeat a short one."
        )
    return doubts


def amount(measure: Measure, change: float, *, is_size: bool = False) -> str:
    """Return a change in words: a factor for a ratio, a difference for anything else.

    Args:
        change: The change on the scale of `Measure.scale`.
        is_size: Give the size alone, without a direction.
    """
    if measure.is_ratio:
        return (
            f"a factor of {math.exp(abs(change)):.3g}" if is_size else f"changed by a factor of {math.exp(change):.3g}"
        )
    if is_size:
        return f"{abs(change):.2g}"
    return f"{'rose' if change > 0 else 'fell'} by {abs(change):.2g}"
