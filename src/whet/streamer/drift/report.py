"""Hold the result of a drift test, complete, for programs and for the page."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from whet.streamer.drift.calibration import Thresholds
from whet.streamer.drift.meter import Series
from whet.streamer.drift.trend import Array
from whet.streamer.drift.verdict import MeasureResult, Verdict, judge

FORMAT = 1


@dataclass(frozen=True)
class DriftReport:
    """Hold the result of a drift test. `subject` is what was tested, such as a target's name."""

    subject: str
    source: str
    series: Series
    thresholds: Thresholds
    verdict: Verdict

    @property
    def exit_code(self) -> int:
        """Return 0 for no drift, 1 for drift, and 3 where nothing can be said."""
        return {"drift": 1, "inconclusive": 3}.get(self.verdict.word, 0)

    @property
    def sentence(self) -> str:
        verdict = self.verdict
        if verdict.word != "drift":
            return f"{verdict.word.capitalize()}: {verdict.reasons[0]}"
        names = [one.measure.title.lower() for one in verdict.results if one.is_drift]
        if verdict.repeats_from is not None:
            names = ["repeated frames", *(name for name in names if name != "novelty")]
        if self.series.broken_from is not None:
            names.insert(0, "broken frames")
        return f"Drift from frame {verdict.from_frame} of {self.series.num_frames} on: {', '.join(names)}."

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON-serialisable dict, with the series and without the film strip."""
        verdict = self.verdict
        return {
            "format": FORMAT,
            "subject": self.subject,
            "source": self.source,
            "num_frames": self.series.num_frames,
            "verdict": verdict.word,
            "reasons": list(verdict.reasons),
            "from_frame": verdict.from_frame,
            "repeats_from": verdict.repeats_from,
            "loop_frames": None if self.series.loop is None else self.series.loop.num_frames,
            "departures": [dataclasses.asdict(one) for one in verdict.departures],
            "broken_from": self.series.broken_from,
            "scene_change": self.series.scene_change,
            "moved": float(self.series.moved.mean()),
            "alarms": self.thresholds.alarms,
            "calibration_frames": self.thresholds.num_frames,
            "measures": {one.measure.name: _result(one) for one in verdict.results},
            "series": {name: _numbers(values) for name, values in self.series.values.items()},
        }


def report(
    series: Series, thresholds: Thresholds | None = None, *, subject: str = "", source: str = "", seed: int = 0
) -> DriftReport:
    """Judge a stream, and return the complete report. Without thresholds, only rounding and chance count."""
    thresholds = thresholds or Thresholds()
    return DriftReport(subject, source, series, thresholds, judge(series, thresholds, seed=seed))


def _result(result: MeasureResult) -> dict[str, Any]:
    """Return what a measure showed as a dict. Changes of ratios are logarithms of factors."""
    trend = result.trend
    return {
        "is_log": result.measure.is_ratio,
        "first": None if trend is None else trend.first,
        "last": None if trend is None else trend.last,
        "change": None if trend is None else trend.change,
        "threshold": None if math.isinf(result.threshold) else result.threshold,
        "slope": None if trend is None else trend.slope,
        "slope_interval": None if trend is None else list(trend.slope_interval),
        "is_drift": result.is_drift,
        "from_frame": result.from_frame,
        "why_not": result.why_not,
    }


def _numbers(values: Array) -> list[float | None]:
    """Return a series with six digits; None where nothing was measured."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values]
