"""Hold what tuning a stream found: the original, the best, the proof, and everything that was tried."""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from whet.stream_tuner.quality import Figures
from whet.stream_tuner.search import Trial

FORMAT = 1
RESULT = "result.json"
Word = Literal["gain", "no-gain", "inconclusive", "failed"]


@dataclass(frozen=True, kw_only=True)
class Point:
    """Hold one way to run the stream, as measured in the end.

    Attributes:
        label: Its settings in words.
        models: The recipes of its models in words, by the name of the call.
        s_per_frame: Seconds from one answer to the next, as the median over the processes; None if not measured.
        figures: Its quality on clips that the search has not seen.
        speedup: The original's time over its own.
        speedup_ci95: The speedup's 95 % interval.
        p_value: The p-value of the comparison with the original; None without one.
        noise: The ratio that as many pairs of equal variants could show by chance.
        p99_s: The 99th percentile of a frame's time, where a budget was asked for.
        budget: Whether it keeps the budget: "held", "missed" or "inconclusive"; None without a budget.
    """

    label: str
    models: dict[str, str] = field(default_factory=dict)
    s_per_frame: float | None = None
    figures: Figures | None = None
    speedup: float = 1.0
    speedup_ci95: tuple[float, float] = (1.0, 1.0)
    p_value: float | None = None
    noise: float = 1.0
    p99_s: float | None = None
    budget: str | None = None

    @property
    def fps(self) -> float | None:
        """Return the frames a second that are answered."""
        return 1 / self.s_per_frame if self.s_per_frame else None


@dataclass(frozen=True, kw_only=True)
class StreamTuning:
    """Hold the outcome of tuning a stream.

    Attributes:
        target: The stream.
        source: The frames that times were measured on.
        objective: "fps" for the most frames of the same quality, "quality" for the best quality within a budget.
        budget_s: Seconds that a frame may take; None without a budget.
        max_drop: The allowed drop in quality, as a fraction.
        verdict: "gain", "no-gain", "inconclusive" or "failed".
        sentence: The verdict in a sentence.
        original: The stream as it was.
        best: The stream that is kept: the original where nothing is proved better.
        rejected: What was measured in the end beside them, with the reason for each.
        has_truth: Whether quality is judged against known answers. Otherwise it is against the original's answers.
        notes: What was decided on the way, in sentences.
        trials: Everything that was tried, in order.
        busy: What disturbed the machine; "" where nothing did.
        seconds: The time of all of it.
        out: The directory with the tuned stream.
    """

    target: str
    source: str
    objective: Literal["fps", "quality"]
    budget_s: float | None
    max_drop: float
    verdict: Word
    sentence: str
    original: Point
    best: Point
    rejected: tuple[tuple[Point, str], ...] = ()
    has_truth: bool = False
    notes: tuple[str, ...] = ()
    trials: tuple[Trial, ...] = ()
    busy: str = ""
    seconds: float = 0.0
    out: str = ""

    @property
    def directory(self) -> Path:
        """Return the directory with the tuned stream, which `whet stream` and `whet.Stream` take."""
        return Path(self.out)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a JSON-serialisable dict."""
        found = {name: getattr(self, name) for name in _PLAIN}
        return {
            "format": FORMAT,
            "kind": "stream",
            **found,
            "notes": list(self.notes),
            "original": _point(self.original),
            "best": _point(self.best),
            "rejected": [{**_point(point), "reason": why} for point, why in self.rejected],
            "trials": [_trial(trial) for trial in self.trials],
        }

    def to_json(self, indent: int | None = 1) -> str:
        """Return the result as JSON text."""
        return json.dumps(self.to_dict(), indent=indent) + "\n"


_PLAIN = (
    "target",
    "source",
    "objective",
    "budget_s",
    "max_drop",
    "verdict",
    "sentence",
    "has_truth",
    "busy",
    "seconds",
    "out",
)


def _point(point: Point) -> dict[str, Any]:
    plain = {one.name: getattr(point, one.name) for one in dataclasses.fields(point)}
    return {**plain, "fps": point.fps, "figures": None if point.figures is None else point.figures.summary()}


def _trial(trial: Trial) -> dict[str, Any]:
    return {
        "label": trial.setting.label,
        "s_per_frame": trial.s_per_frame,
        "figures": None if trial.figures is None else trial.figures.summary(),
        "reasons": [] if trial.change is None else list(trial.change.reasons),
        "failure": trial.failure,
    }
