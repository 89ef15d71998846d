"""Count what a stream did with each frame, and how long it took, in memory that does not grow with its length."""

import math
import threading
from collections import Counter
from dataclasses import dataclass, field

from whet.measure.latency_histogram import LatencyHistogram


@dataclass
class Deviation:
    """Compute a standard deviation one value at a time (Welford, Technometrics 4, 1962)."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        delta = value - self.mean
        self.mean += delta / self.count
        self.squares += delta * (value - self.mean)

    def value(self) -> float | None:
        """Return the sample's standard deviation; None with fewer than two values."""
        return math.sqrt(self.squares / (self.count - 1)) if self.count > 1 else None


@dataclass
class Timings:
    """Hold the counts and times of one stream, as `StreamReport` describes them.

    Several threads write them; `lock` guards all fields. An interval lies between the ends of two computed frames.
    """

    budget_s: float | None = None
    model_s: LatencyHistogram = field(default_factory=LatencyHistogram)
    frame_s: LatencyHistogram = field(default_factory=LatencyHistogram)
    latency_s: LatencyHistogram = field(default_factory=LatencyHistogram)
    repeated_s: LatencyHistogram = field(default_factory=LatencyHistogram)
    interval_s: LatencyHistogram = field(default_factory=LatencyHistogram)
    counts: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)
    _jitter: Deviation = field(default_factory=Deviation)
    _first_s: float | None = None
    _last_s: float | None = None

    def count(self, *names: str) -> None:
        """Add one to each of these counts."""
        with self.lock:
            self.counts.update(names)

    def computed(self, *, model_s: float, frame_s: float, ended_s: float, is_final: bool, every: int = 1) -> None:
        """Record one call of the model.

        Args:
            ended_s: The time of the clock at its end.
            is_final: Whether a frame came out. The first calls of a rolling batch give none.
            every: One frame of so many is computed, and has the time of all of them before it is late.
        """
        with self.lock:
            self.model_s.add(model_s)
            self.frame_s.add(frame_s)
            if self.budget_s is not None and frame_s > self.budget_s * every:
                self.counts["late"] += 1
            if not is_final:
                return
            self.counts["final"] += 1
            if self._last_s is not None:
                self.interval_s.add(ended_s - self._last_s)
                self._jitter.add(ended_s - self._last_s)
            if self._first_s is None:
                self._first_s = ended_s
            self._last_s = ended_s

    def written(self, latency_s: float, *, is_computed: bool = True) -> None:
        """Record that the answer to a frame was written, so many seconds after the frame arrived."""
        with self.lock:
            (self.latency_s if is_computed else self.repeated_s).add(latency_s)
            self.counts["written"] += 1

    def final_fps(self) -> float | None:
        """Return the computed frames per second, from the first to the last; None with fewer than two."""
        with self.lock:
            if self._first_s is None or self._last_s is None or self._last_s <= self._first_s:
                return None
            return (self.counts["final"] - 1) / (self._last_s - self._first_s)

    def jitter_s(self) -> float | None:
        """Return the standard deviation of the intervals between computed frames, in seconds."""
        with self.lock:
            return self._jitter.value()

    def late_share(self) -> float | None:
        """Return the share of frames that came late or were lost, of all that arrived; None without a budget."""
        with self.lock:
            if self.budget_s is None or not self.counts["arrived"]:
                return None
            lost = self.counts["dropped"] + self.counts["unwritten"]
            return (self.counts["late"] + lost) / self.counts["arrived"]
