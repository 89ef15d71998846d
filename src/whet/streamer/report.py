"""Say how a stream went: frames, times, the budget, and what was skipped."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from whet.measure.latency_histogram import LatencyHistogram
from whet.streamer.timings import Timings

Verdict = Literal["held", "missed", "inconclusive"]

MOST_LATE = 0.001  # the share of frames that may be late where a budget is held
_MIN_FRAMES = 100  # with fewer frames, a budget has no verdict


@dataclass(frozen=True)
class Spread:
    """Hold percentiles of times, in seconds."""

    p50: float
    p90: float
    p99: float
    longest: float
    count: int

    @classmethod
    def of(cls, histogram: LatencyHistogram) -> "Spread | None":
        """Return the percentiles of a histogram; None where it is empty."""
        p50, p90, p99 = (histogram.percentile_s(percent) for percent in (50, 90, 99))
        if p50 is None or p90 is None or p99 is None:
            return None
        return cls(p50, p90, p99, histogram.longest_s, histogram.count)


@dataclass(frozen=True, kw_only=True)
class StreamReport:
    """Hold what a stream did. Times are in seconds.

    Attributes:
        target: The model.
        source: Where frames came from.
        sink: Where answers went.
        size: Height and width of the frames that the model took.
        steps: Steps of the sampler at the best level; None without a sampler.
        sampler: The sampler; None without one.
        counts: Frames that arrived, were computed to the end ("final"), repeated as "still" or "skipped", "dropped"
            while the model was busy, "late", "not_finite", "written", "unwritten" and the like.
        problems: What the source skipped or mended, with how often.
        wall_s: Seconds from the start to the end.
        final_fps: Computed frames per second. Repeated frames don't count.
        frame: Times of a call with its conversions: from taking a frame to the image that the call finishes. In a
            rolling batch that image answers an earlier frame; see `latency`.
        model: Times of the model's calls alone.
        latency: Times from the arrival of a computed frame to the moment at which its answer was written.
        repeats: The same of frames that were not computed; their answer repeats the one before. None without them.
        interval: Times between computed frames.
        jitter_s: The standard deviation of these intervals.
        budget_s: Seconds that a frame may take; None without a budget.
        late_share: The share of frames that came late, were dropped, or were not written; None without a budget.
        levels: The changes of the level, as the frame at which each happened and the level in words.
        ended_at: The last level in words.
        busy: What disturbed the machine; empty where nothing did.
        interrupted: Whether the stream was ended by Ctrl-C.
        error: The message of what ended the stream early, or how its source is damaged; empty without one.
        notes: What is not as the options say, in sentences.
    """

    target: str
    source: str
    sink: str
    size: tuple[int, int]
    steps: int | None
    sampler: str | None
    counts: dict[str, int]
    problems: dict[str, int] = field(default_factory=dict)
    wall_s: float
    final_fps: float | None
    frame: Spread | None
    model: Spread | None
    latency: Spread | None
    interval: Spread | None
    jitter_s: float | None
    repeats: Spread | None = None
    budget_s: float | None = None
    late_share: float | None = None
    levels: tuple[tuple[int, str], ...] = ()
    ended_at: str = ""
    busy: str = ""
    interrupted: bool = False
    error: str = ""
    notes: tuple[str, ...] = ()

    @property
    def overhead(self) -> float | None:
        """Return a frame's time beside its model, as a share of the model's time; None where nothing was computed."""
        if self.frame is None or self.model is None or self.model.p50 <= 0:
            return None
        return self.frame.p50 / self.model.p50 - 1

    @property
    def verdict(self) -> Verdict | None:
        """Return whether the budget was held; None without a budget.

        It is held where the 99th percentile of a frame's time is within it, and at most one frame in 1,000 was late or
        lost, at the level that was asked for. A busy machine, or too few frames, gives no verdict.
        """
        if self.budget_s is None or self.frame is None or self.late_share is None:
            return None
        if self.busy or self.frame.count < _MIN_FRAMES:
            return "inconclusive"
        held = self.frame.p99 <= self.budget_s and self.late_share <= MOST_LATE and not self.levels
        return "held" if held else "missed"

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a JSON-serialisable dict, with the verdict and the overhead."""
        return {"schema": 1, **asdict(self), "overhead": self.overhead, "verdict": self.verdict}

    def to_json(self, indent: int | None = 1) -> str:
        """Return the report as JSON text, which ends with a line break."""
        return json.dumps(self.to_dict(), indent=indent) + "\n"


def times_of(timings: Timings) -> dict[str, Any]:
    """Return the fields of a report that the counts and times give."""
    fps, jitter_s, late_share = timings.final_fps(), timings.jitter_s(), timings.late_share()
    with timings.lock:
        return {
            "counts": dict(sorted(timings.counts.items())),
            "final_fps": fps,
            "frame": Spread.of(timings.frame_s),
            "model": Spread.of(timings.model_s),
            "latency": Spread.of(timings.latency_s),
            "repeats": Spread.of(timings.repeated_s),
            "interval": Spread.of(timings.interval_s),
            "jitter_s": jitter_s,
            "budget_s": timings.budget_s,
            "late_share": late_share,
        }
