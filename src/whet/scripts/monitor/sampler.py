"""Sample everything once an interval, in a thread that adds a row to the run."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from whet.errors import reason
from whet.scripts.monitor.run import Run
from whet.scripts.monitor.series import Cell, Row
from whet.scripts.monitor.steps import StepTotals

_log = logging.getLogger(__name__)


class Collector(Protocol):
    """Define an object that measures. `unavailable` names what it cannot measure here, and why."""

    unavailable: dict[str, str]

    def collect(self) -> dict[str, Cell]:
        """Return the cells of this moment, or of the time since the last call."""


class Sampler:
    """Take samples from `start` to `stop`. `run` gets the rows; `take_steps` returns the steps since its last call."""

    def __init__(self, run: Run, collectors: Sequence[Collector], take_steps: Callable[[], StepTotals]) -> None:
        self._run = run
        self._collectors = list(collectors)
        self._take_steps = take_steps
        self._sampled_s = run.elapsed_s()
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._loop, name="whet-monitor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and take a last sample."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._thread.join()
        self.sample()

    def sample(self) -> None:
        with self._lock:
            cells: dict[str, Cell] = {}
            unavailable: dict[str, str] = {}
            for collector in list(self._collectors):
                try:
                    cells |= collector.collect()
                    unavailable |= collector.unavailable
                except Exception as error:  # noqa: BLE001 - a collector that fails must end neither monitor nor program
                    _log.warning("a collector of whet.scripts.monitor failed and is not used again", exc_info=True)
                    self._collectors.remove(collector)
                    self._run.note(type(collector).__name__, f"{type(collector).__name__} failed: {reason(error)}")
            steps = self._take_steps()
            cells |= steps.cells()
            ended_s = self._run.elapsed_s()
            self._run.add(Row(self._sampled_s, ended_s, cells), steps, unavailable)
            self._sampled_s = ended_s

    def _loop(self) -> None:
        interval_s = self._run.facts.interval_s
        next_s = time.monotonic() + interval_s
        while not self._stopped.wait(max(0.0, next_s - time.monotonic())):
            self.sample()
            next_s += interval_s
            if next_s < time.monotonic():  # this sample was late; do not take the next ones faster to catch up
                next_s = time.monotonic() + interval_s
