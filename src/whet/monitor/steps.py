"""Steps as they are counted: cheap to add from the training loop, taken away at every sample by another thread."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from whet.monitor import metrics
from whet.monitor.histogram import LatencyHistogram
from whet.monitor.series import Cell


@dataclass
class StepTotals:
    """Steps that ended, and what they took. num_samples, num_tokens: None where nobody said how many."""

    latencies: LatencyHistogram = field(default_factory=LatencyHistogram)
    phases_s: dict[str, float] = field(default_factory=dict)
    num_samples: int | None = None
    num_tokens: int | None = None

    @property
    def num_steps(self) -> int:
        return self.latencies.count

    def add(
        self, latency_s: float, phases_s: Mapping[str, float], num_samples: int | None, num_tokens: int | None
    ) -> None:
        """Count one step."""
        self.latencies.add(latency_s)
        for name, seconds in phases_s.items():
            self.phases_s[name] = self.phases_s.get(name, 0.0) + seconds
        self._add_work(num_samples, num_tokens)

    def merge(self, other: "StepTotals") -> None:
        """Add all the steps of another."""
        self.latencies.merge(other.latencies)
        for name, seconds in other.phases_s.items():
            self.phases_s[name] = self.phases_s.get(name, 0.0) + seconds
        self._add_work(other.num_samples, other.num_tokens)

    def shares(self) -> dict[str, float]:
        """Fraction of the step's time in each phase, with the rest; empty where no phase was measured."""
        whole_s = self.latencies.total_s
        if not self.phases_s or not whole_s:
            return {}
        known_s = sum(self.phases_s.values())
        shares = {name: seconds / max(whole_s, known_s) for name, seconds in self.phases_s.items()}
        shares[metrics.REST] = shares.get(metrics.REST, 0.0) + max(0.0, 1 - known_s / whole_s)
        return shares

    def cells(self) -> dict[str, Cell]:
        """The row's cells of these steps; none where no step ended. Rates are over the time the steps took."""
        steps = self.latencies
        if not steps.count:
            return {}
        mean_ms = steps.total_s / steps.count * 1e3
        cells = {metrics.STEP: Cell(mean_ms, steps.shortest_s * 1e3, steps.longest_s * 1e3, steps.count)}
        if not steps.total_s:
            return cells
        rates = {metrics.STEPS: steps.count, metrics.SAMPLES: self.num_samples, metrics.TOKENS: self.num_tokens}
        for key, count in rates.items():
            if count is not None:
                cells[key] = Cell.of(count / steps.total_s, steps.total_s)
        for name, share in self.shares().items():
            cells[f"{metrics.SHARE}:{name}"] = Cell.of(100 * share, steps.total_s)
        return cells

    def to_json(self) -> dict[str, object]:
        """As JSON can hold it; `messages` reads it back."""
        return {
            "latencies": self.latencies.to_json(),
            "phases_s": self.phases_s,
            "num_samples": self.num_samples,
            "num_tokens": self.num_tokens,
        }

    def _add_work(self, num_samples: int | None, num_tokens: int | None) -> None:
        if num_samples is not None:
            self.num_samples = (self.num_samples or 0) + num_samples
        if num_tokens is not None:
            self.num_tokens = (self.num_tokens or 0) + num_tokens


class StepCounter:
    """Where the loop's thread adds steps and the sampler's thread takes them away."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals = StepTotals()

    def add(
        self,
        latency_s: float,
        phases_s: Mapping[str, float],
        num_samples: int | None = None,
        num_tokens: int | None = None,
    ) -> None:
        """Count one step that ended."""
        with self._lock:
            self._totals.add(latency_s, phases_s, num_samples, num_tokens)

    def take(self) -> StepTotals:
        """What was counted since the last call."""
        with self._lock:
            taken, self._totals = self._totals, StepTotals()
        return taken
