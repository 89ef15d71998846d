"""Steps as they are counted: cheap to add from the training loop, taken away at every sample by another thread."""

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from whet.monitor import metrics
from whet.monitor.histogram import LatencyHistogram
from whet.monitor.series import Cell

_MOST_PENDING = 1024


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


class Step(Protocol):
    """A step as `whet.step_profiler` records it."""

    @property
    def seconds(self) -> float: ...

    def phases_s(self) -> dict[str, float]: ...


_Pending = tuple[float | Step, Mapping[str, float] | None, int | None, int | None]  # latency and phases, or both in one


class StepCounter:
    """Where the loop's thread adds steps and the sampler's thread takes them away.

    The loop only puts a step down, at the price of a deque's append; what it comes to is worked out by who takes it,
    or after `_MOST_PENDING` steps. The caches that a step's own work has emptied make each line run there dear.
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
        """Count one step that ended. phases_s: is kept for a while."""
        self._put((latency_s, phases_s, num_samples, num_tokens))

    def add_step(self, step: Step, num_samples: int | None = None, num_tokens: int | None = None) -> None:
        """Count one step that ended, as it was recorded."""
        self._put((step, None, num_samples, num_tokens))

    def take(self) -> StepTotals:
        """What was counted since the last call."""
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
    """Seconds by the phase's name as metrics are named."""
    return {name.replace(" ", "_"): seconds for name, seconds in step.phases_s().items()}
