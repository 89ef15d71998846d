"""Follow how a stream's output moves away from its input while it runs, for people who watch it.

The test of `whet stream --drift` judges; this only shows. A camera that moves changes these numbers as well.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from whet.measure.frames import as_float, histogram
from whet.streamer.drift.meter import appearance, fitted, reduced
from whet.streamer.frames import Image

NUM_COMPARED = 20
"""How many measured answers are at the beginning, and how many at the end."""

_PAUSE_S = 0.25  # between two measured answers: each takes some milliseconds of a core
_SIDE = 128  # pixels; larger frames are reduced


@dataclass(frozen=True)
class Moved:
    """Hold the mean of a measure at the beginning and now; None where the input is flat and there is no ratio."""

    first: float | None
    last: float | None


class LiveDrift:
    """Compare the newest answers of a stream with its first ones, each beside its input.

    `add` is called in one thread; `restart` and `figures` in any. `clock` returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._next_s = -math.inf
        self._first: list[dict[str, float]] = []
        self._last: deque[dict[str, float]] = deque(maxlen=NUM_COMPARED)

    def add(self, output: Image, reference: Image) -> None:
        """Measure an answer and what it was made of, uint8 [H, W, 3] both, unless one was measured a moment ago."""
        now = self._clock()
        if now < self._next_s:
            return
        self._next_s = now + _PAUSE_S
        made, shown = reduced(as_float(output), _SIDE), reduced(as_float(reference), _SIDE)
        shown = fitted(shown, made.shape)
        found = appearance(made, shown, (histogram(made), histogram(shown)))
        with self._lock:
            if len(self._first) < NUM_COMPARED:
                self._first.append(found)
            self._last.append(found)

    def restart(self) -> None:
        """Take the answers from now on as the first ones, as after a change that was asked for."""
        with self._lock:
            self._first.clear()
            self._last.clear()

    def figures(self) -> dict[str, Moved] | None:
        """Return the measures colour, contrast and sharpness; None until there are enough answers for a beginning."""
        with self._lock:
            first, last = list(self._first), list(self._last)
        if len(first) < NUM_COMPARED:
            return None
        return {name: Moved(_mean(first, name), _mean(last, name)) for name in first[0]}


def _mean(found: list[dict[str, float]], name: str) -> float | None:
    values = [one[name] for one in found if not math.isnan(one[name])]
    return float(np.mean(values)) if values else None
