"""One watched run: all that is known of it, shared by the sampler, the page, the exporter and the summary."""

import datetime
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from whet.figures import MIN_SAMPLES_FOR_P99
from whet.monitor import metrics
from whet.monitor.series import Cell, Row, Series, columns
from whet.monitor.steps import StepTotals


@dataclass(frozen=True)
class Facts:
    """What a run is. interval_s: between samples. num_cores: those it may use."""

    name: str
    command: str
    pid: int
    host: str
    interval_s: float
    num_cores: int
    memory_bytes: int


@dataclass(frozen=True)
class Ending:
    """How a run ended. exit_code: None for a part of a process. message: what went wrong, or ""."""

    exit_code: int | None
    message: str

    @property
    def has_failed(self) -> bool:
        return bool(self.exit_code or self.message)


class Run:
    """Thread-safe. Moments are seconds since the run began."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.id = secrets.token_hex(8)  # tells the page that another run answers now
        self.started_at = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        self._began = time.monotonic()
        self._lock = threading.RLock()
        self._series = Series()
        self._totals = StepTotals()
        self._last_step_s: float | None = None
        self._unavailable: dict[str, str] = {}
        self._gpu_names: dict[int, str] = {}
        self._notes: dict[str, str] = {}
        self._ending: Ending | None = None
        self._ended_s: float | None = None
        self._listeners: list[Callable[[], None]] = []

    def elapsed_s(self) -> float:
        """Since the run began; up to its end once it has ended."""
        return self._ended_s if self._ended_s is not None else time.monotonic() - self._began

    def add(self, row: Row, steps: StepTotals, unavailable: Mapping[str, str]) -> None:
        """Add what one interval gave. unavailable: what cannot be measured here -> why."""
        with self._lock:
            self._series.add(row)
            self._totals.merge(steps)
            if steps.num_steps:
                self._last_step_s = row.ended_s
            self._unavailable = dict(unavailable)
        self._notify()

    def name_gpus(self, names: Mapping[int, str]) -> None:
        """What the GPUs are called, by number."""
        with self._lock:
            self._gpu_names = dict(names)

    def note(self, key: str, text: str) -> None:
        """Something the reader must know. A later note with the same key takes its place."""
        with self._lock:
            self._notes[key] = text

    def end(self, exit_code: int | None = None, message: str = "") -> None:
        """The run is over; only the first call counts."""
        with self._lock:
            if self._ending is not None:
                return
            self._ended_s = time.monotonic() - self._began
            self._ending = Ending(exit_code, message)
        self._notify()

    @property
    def ending(self) -> Ending | None:
        """None while the run goes on."""
        return self._ending

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` from whichever thread brings something new."""
        with self._lock:
            self._listeners.append(listener)

    @property
    def num_rows(self) -> int:
        return self._series.num_rows

    def totals(self) -> StepTotals:
        """A copy of all steps so far."""
        copy = StepTotals()
        with self._lock:
            copy.merge(self._totals)
        return copy

    def whole(self) -> dict[str, Cell]:
        """Every key's mean, smallest and largest over the run."""
        with self._lock:
            return dict(self._series.whole())

    def latest(self) -> dict[str, Cell]:
        """The cells of the last interval."""
        with self._lock:
            rows = self._series.after(self._series.num_rows - 1)
        return dict(rows[-1].cells) if rows else {}

    def unavailable(self) -> dict[str, str]:
        """What cannot be measured here, or nobody counted -> why."""
        with self._lock:
            return _uncounted(self._totals) | self._unavailable

    def notes(self) -> list[str]:
        with self._lock:
            return list(self._notes.values())

    def gpu_names(self) -> dict[int, str]:
        with self._lock:
            return dict(self._gpu_names)

    def update(self, after: int = 0) -> dict[str, object]:
        """For the page: rows from the `after`-th on, and how things stand."""
        with self._lock:
            return {
                "run": self.id,
                "num_rows": self._series.num_rows,
                "rows": columns(self._series.after(after)),
                "state": self._state(),
            }

    def history(self) -> dict[str, object]:
        """For the page: the whole run in few rows."""
        with self._lock:
            return {"run": self.id, "rows": columns(self._series.history())}

    def _state(self) -> dict[str, object]:
        steps, latencies = self._totals, self._totals.latencies
        milliseconds = {
            f"p{percent}_ms": seconds * 1e3
            for percent in (50, 90, *((99,) if latencies.count >= MIN_SAMPLES_FOR_P99 else ()))
            if (seconds := latencies.percentile_s(percent)) is not None
        }
        return {
            "name": self.facts.name,
            "command": self.facts.command,
            "host": self.facts.host,
            "pid": self.facts.pid,
            "num_cores": self.facts.num_cores,
            "memory_bytes": self.facts.memory_bytes,
            "interval_s": self.facts.interval_s,
            "started_at": self.started_at,
            "elapsed_s": round(self.elapsed_s(), 3),
            "num_steps": steps.num_steps,
            "num_samples": steps.num_samples,
            "num_tokens": steps.num_tokens,
            "last_step_s": self._last_step_s,
            "peak_rss_bytes": self._series.whole()[metrics.RSS].high if metrics.RSS in self._series.whole() else None,
            **milliseconds,
            "gpus": {str(number): name for number, name in self._gpu_names.items()},
            "notes": list(self._notes.values()),
            "unavailable": self.unavailable(),
            "ended": None if self._ending is None else vars(self._ending),
        }

    def _notify(self) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener()


def _uncounted(steps: StepTotals) -> dict[str, str]:
    """What the steps do not say of themselves -> how they could."""
    if not steps.num_steps:
        return {"steps": "no step has ended yet"}
    missing = {}
    if steps.num_samples is None:
        missing["samples"] = "no DataLoader gave a batch, and no monitor.step(num_samples=...) said how many"
    if steps.num_tokens is None:
        missing["tokens"] = "no batch held input_ids, and no monitor.step(num_tokens=...) said how many"
    if metrics.DATA_WAIT not in steps.phases_s:
        missing["data wait"] = "no DataLoader gave a batch, and the loop does not use monitor.batches(loader)"
    return missing
