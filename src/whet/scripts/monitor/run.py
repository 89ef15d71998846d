"""Hold all that is known of one watched run, for the sampler, the page, the exporter and the summary."""

import datetime
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from whet.scripts.monitor import metrics
from whet.scripts.monitor.ranks import RankTable
from whet.scripts.monitor.series import Cell, Row, Series, columns
from whet.scripts.monitor.steps import StepTotals
from whet.ui.figures import MIN_SAMPLES_FOR_P99


@dataclass(frozen=True)
class Facts:
    """Describe a run. `num_cores` is how many it may use; `memory_bytes` is the machine's memory."""

    name: str
    command: str
    pid: int
    host: str
    interval_s: float
    num_cores: int
    memory_bytes: int


@dataclass(frozen=True)
class Ending:
    """Describe how a run ended: what went wrong, or "", and the exit code, None where no command was watched."""

    exit_code: int | None
    message: str

    @property
    def has_failed(self) -> bool:
        return bool(self.exit_code or self.message)


class Run:
    """Hold one run. It is thread-safe. Moments are seconds since the run began.

    Attributes:
        id: A random id. It tells the page if another run answers.
        started_at: When the run began, in ISO format.
        ranks: What each rank reports, where several processes train together.
        gpu_names: The names of the visible GPUs, by the driver's numbers. It is set once, before the sampling begins.
    """

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.id = secrets.token_hex(8)
        self.started_at = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        self.gpu_names: Mapping[int, str] = {}
        self.ranks = RankTable()
        self._began = time.monotonic()
        self._lock = threading.RLock()
        self._series = Series()
        self._totals = StepTotals()
        self._last_step_s: float | None = None
        self._unavailable: dict[str, str] = {}
        self._notes: dict[str, str] = {}
        self._ending: Ending | None = None
        self._ended_s: float | None = None
        self._listeners: list[Callable[[], None]] = []

    def elapsed_s(self) -> float:
        """Return the seconds since the run began, up to its end if it has ended."""
        return self._ended_s if self._ended_s is not None else time.monotonic() - self._began

    def add(self, row: Row, steps: StepTotals, unavailable: Mapping[str, str]) -> None:
        with self._lock:
            self._series.add(row)
            self._totals.merge(steps)
            if steps.num_steps:
                self._last_step_s = row.ended_s
            self._unavailable = dict(unavailable)
        self._notify()

    def note(self, key: str, text: str) -> None:
        """Add a remark for the reader. It replaces an earlier one with the same key."""
        with self._lock:
            self._notes[key] = text

    def end(self, exit_code: int | None = None, message: str = "") -> None:
        """End the run. Only the first call has an effect."""
        with self._lock:
            if self._ending is not None:
                return
            self._ended_s = time.monotonic() - self._began
            self._ending = Ending(exit_code, message)
        self._notify()

    @property
    def ending(self) -> Ending | None:
        """Return how the run ended, or None while it runs."""
        return self._ending

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` at every change, from the thread that makes it."""
        with self._lock:
            self._listeners.append(listener)

    @property
    def num_rows(self) -> int:
        return self._series.num_rows

    def totals(self) -> StepTotals:
        """Return a copy of the totals of all steps so far."""
        copy = StepTotals()
        with self._lock:
            copy.merge(self._totals)
        return copy

    def whole(self) -> dict[str, Cell]:
        """Return the mean, smallest and largest value of every key over the run."""
        with self._lock:
            return dict(self._series.whole())

    def latest(self) -> dict[str, Cell]:
        """Return the cells of the last interval."""
        with self._lock:
            rows = self._series.after(self._series.num_rows - 1)
        return dict(rows[-1].cells) if rows else {}

    def unavailable(self) -> dict[str, str]:
        """Return what cannot be measured here or was not counted, and why."""
        with self._lock:
            return _uncounted(self._totals) | self._unavailable

    def notes(self) -> list[str]:
        with self._lock:
            return list(self._notes.values())

    def update(self, after: int = 0) -> dict[str, object]:
        """Return the page's data: the rows after the first `after`, and the state of the run."""
        with self._lock:
            return {
                "run": self.id,
                "num_rows": self._series.num_rows,
                "rows": columns(self._series.after(after)),
                "state": self._state(),
            }

    def history(self) -> dict[str, object]:
        """Return the whole run in few rows, for the page."""
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
            "gpus": {str(number): name for number, name in self.gpu_names.items()},
            "ranks": [asdict(row) for row in self.ranks.rows()],
            "straggler": self.ranks.straggler(),
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
    """Return what the steps do not show, and how they could."""
    if not steps.num_steps:
        return {"steps": "no step has ended yet"}
    missing = {}
    if steps.num_samples is None:
        missing["samples"] = "no DataLoader gave a batch, and no call of monitor.step(num_samples=...) gave a number"
    if steps.num_tokens is None:
        missing["tokens"] = "no batch had input_ids, and no call of monitor.step(num_tokens=...) gave a number"
    if metrics.DATA_WAIT not in steps.phases_s:
        missing["data wait"] = "no DataLoader gave a batch, and the loop does not use monitor.batches(loader)"
    return missing
