"""Sources, sinks and steps with known frames, for tests."""

import threading

import numpy as np
import torch

from whet.streamer.report import Spread, StreamReport
from whet.streamer.sources import Source


class Listed(Source):
    """Hand out frames of one grey level each: frame k has the level k mod 256 (or `levels[k]`)."""

    def __init__(self, num, *, is_live=False, size=(8, 8), levels=None, fails_at=None, error=None, gate=None):
        super().__init__("listed", rate=25.0, is_live=is_live)
        self._num, self._size, self._levels = num, size, levels
        self._fails_at, self._error, self._gate = fails_at, error, gate
        self._at = 0
        self.is_closed = False

    def _next(self):
        if self._at == self._fails_at:
            raise self._error
        if self._at >= self._num:
            raise StopIteration
        if self._gate is not None:
            self._gate(self._at)
        level = self._levels[self._at] if self._levels else self._at % 256
        image = np.full((*self._size, 3), level, np.uint8)
        time_s = self._at / 25
        self._at += 1
        return image, time_s

    def _release(self):
        self.is_closed = True


class Recorder:
    """Be a sink that keeps what is written, and may fail or wait."""

    name = "recorder"

    def __init__(self, fails_at=None, error=None):
        self.images, self.times, self.is_closed = [], [], False
        self._fails_at, self._error = fails_at, error
        self.open_gate = threading.Event()
        self.open_gate.set()

    def write(self, image, time_s):
        self.open_gate.wait(30)
        if len(self.images) == self._fails_at:
            raise self._error
        self.images.append(image)
        self.times.append(time_s)

    def close(self):
        self.is_closed = True


class Delayed:
    """Be a step with `delay` frames in flight, whose answer to a frame is its negative."""

    def __init__(self, steps=3):
        self.steps, self.held, self.num_calls, self.changes = steps, [], 0, []

    @property
    def in_flight(self):
        return len(self.held)

    def __call__(self, frame):
        self.held.append([0, frame])
        return self.advance()

    def advance(self):
        self.num_calls += 1
        for flight in self.held:
            flight[0] += 1
        if self.held and self.held[0][0] >= self.steps:
            return 1 - self.held.pop(0)[1]
        return None

    def change(self, steps):
        self.steps = steps or self.steps
        self.held.clear()
        self.changes.append(steps)

    def reset(self):
        self.held.clear()


def negative(frame: torch.Tensor) -> torch.Tensor:
    """Return a frame's negative."""
    return 1 - frame


def made_report(**values) -> StreamReport:
    """Return the report of a stream of one step of lcm, with other values where some are given."""
    usual = {"target": "t", "source": "s", "sink": "null", "size": (16, 16), "steps": 1, "sampler": "lcm"}
    usual |= {"counts": {}, "wall_s": 1.0, "final_fps": 10.0, "jitter_s": None, "latency": None, "interval": None}
    return StreamReport(**{**usual, **values})


def spread(p99: float, p50: float | None = None) -> Spread:
    """Return the percentiles of times, in seconds."""
    return Spread(p99 if p50 is None else p50, p99, p99, p99, 500)
