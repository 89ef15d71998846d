"""Count steps: the training loop's thread adds them cheaply, and another thread takes them at every sample."""

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from whet.measure.latency_histogram import LatencyHistogram
from whet.scripts.monitor import metrics
from whet.scripts.monitor.series import Cell

_MOST_PENDING = 1024


@dataclass
class StepTotals:
    """Hold the totals of some steps. Their numbers of samples and tokens are None if unknown."""

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
        self.latencies.add(latency_s)
        self._add_work(phases_s, num_samples, num_tokens)

    def merge(self, other: "StepTotals") -> None:
        self.latencies.merge(other.latencies)
        self._add_work(other.phases_s, other.num_samples, other.num_tokens)

    def shares(self) -> dict[str, float]:
        """Return each phase's share of the steps' time, 0 to 1, with the rest; empty if no phase was measured."""
        whole_s = self.latencies.total_s
        if not self.phases_s or not whole_s:
            return {}
        known_s = sum(self.phases_s.values())
        shares = {name: seconds / max(whole_s, known_s) for name, seconds in self.phases_s.items()}
        shares[metrics.REST] = shares.get(metrics.REST, 0.0) + max(0.0, 1 - known_s / whole_s)
        return shares

    def cells(self) -> dict[str, Cell]:
        """Return the cells of a row; none if no step ended. Rates are over the time that the steps took."""
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
        """Return the totals as a JSON-serialisable dict. `messages.Steps` reads it."""
        return {
            "latencies": self.latencies.to_json(),
            "phases_s": self.phases_s,
            "num_samples": self.num_samples,
            "num_tokens": self.num_tokens,
        }

    def _add_work(self, phases_s: Mapping[str, float], num_samples: int | None, num_tokens: int | None) -> None:
        for name, seconds in phases_s.items():
            self.phases_s[name] = self.phases_s.get(name, 0.0) + seconds
        if num_samples is not None:
            self.num_samples = (self.num_samples or 0) + num_samples
        if num_tokens is not None:
            self.num_tokens = (self.num_tokens or 0) + num_tokens


class Step(Protocol):
    """Define a step, as `whet.profiling.step` records it."""

    @property
    def seconds(self) -> float:
        """Return the time of the step in seconds."""
        ...

    def phases_s(self) -> dict[str, float]:
        """Return the seconds of each phase, by its name."""
        ...


# Latency and phases, or a Step and None; then the numbers of samples and tokens.
_Pending = tuple[float | Step, Mapping[str, float] | None, int | None, int | None]


class StepCounter:
    """Count steps that the loop's thread adds and the sampler's thread takes.

    The loop only appends a step to a deque. The totals are computed by the thread that takes them, or after
    `_MOST_PENDING` steps. A step's own work empties the caches, so every line that runs in the loop's thread is slow.
    """

    def __init__(self) -> None:
        self._pending: deque[_Pending] = deque()
        self._lock = threading.Lock()
        self._totals = StepTotals()

    def add(
        self,
        latency_s: float,
        phases_s: Mapping[str, float],
        num_samples: int | None = None,
        num_tokens: int | None = None,
    ) -> None:
        """Count one step that ended. The mapping of seconds by phase is kept for a while, so it must not change."""
        self._put((latency_s, phases_s, num_samples, num_tokens))

    def add_step(self, step: Step, num_samples: int | None = None, num_tokens: int | None = None) -> None:
        self._put((step, None, num_samples, num_tokens))

    def take(self) -> StepTotals:
        """Return the totals since the last call."""
        with self._lock:
            self._add_up()
            taken, self._totals = self._totals, StepTotals()
        return taken

    def _put(self, step: _Pending) -> None:
        self._pending.append(step)
        if len(self._pending) >= _MOST_PENDING:
            with self._lock:
                self._add_up()

    def _add_up(self) -> None:
        while self._pending:
            step, phases_s, num_samples, num_tokens = self._pending.popleft()
            if isinstance(step, float | int):
                self._totals.add(step, phases_s or {}, num_samples, num_tokens)
            else:
                self._totals.add(step.seconds, phases_of(step), num_samples, num_tokens)


def phases_of(step: Step) -> dict[str, float]:
    """Return seconds by phase, under the names that metrics use."""
    return {name.replace(" ", "_"): seconds for name, seconds in step.phases_s().items()}
