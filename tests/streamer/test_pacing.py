"""Frames of a recording, handed out at their own times."""

import threading

import numpy as np
import pytest

from whet.streamer.sources import Source, paced
from whet.streamer.sources.pacing import Paced
from whet.streamer.sources.synthetic import SyntheticClip


class Clock:
    """Count seconds, which pass in `sleep` alone."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def test_frames_come_at_their_own_times() -> None:
    clock = Clock()
    source = Paced(SyntheticClip(4, rate=10), clock, clock.sleep)
    assert source.is_live
    assert source.rate == 10
    came = [(frame.index, frame.time_s, round(clock.now - 1000, 9)) for frame in source]
    assert came == [(0, 0, 0), (1, 0.1, 0.1), (2, 0.2, 0.2), (3, 0.3, 0.3)]


def test_frames_that_fell_due_meanwhile_come_at_once_and_in_order() -> None:
    clock = Clock()
    source = Paced(SyntheticClip(6, rate=10), clock, clock.sleep)
    plain = list(SyntheticClip(6, rate=10))
    next(source)
    clock.now += 0.35
    for index in (1, 2, 3):
        frame = next(source)
        assert (frame.index, frame.time_s) == (index, plain[index].time_s)
        assert np.array_equal(frame.image, plain[index].image)
    assert clock.slept == []
    assert next(source).index == 4
    assert sum(clock.slept) == pytest.approx(0.05)


def test_a_sleep_that_returns_early_is_repeated() -> None:
    clock = Clock()
    source = Paced(SyntheticClip(2, rate=10), clock, lambda seconds: clock.sleep(seconds / 2 if seconds > 0.01 else 1))
    next(source)
    next(source)
    assert len(clock.slept) > 2


def test_closing_wakes_it_up_and_closes_the_source() -> None:
    inner = SyntheticClip(2, rate=0.001)  # the second frame is due after 1,000 s
    source = paced(inner)
    assert next(source).index == 0
    found: list[object] = []
    reader = threading.Thread(target=lambda: found.extend(source))
    reader.start()
    source.close()
    reader.join(60)
    assert not reader.is_alive()
    assert found == []
    assert list(inner) == []


def test_a_live_source_is_returned_as_it_is_and_problems_are_shared() -> None:
    inner: Source = SyntheticClip(2)
    source = paced(inner)
    assert isinstance(source, Paced)
    assert paced(source) is source
    assert source.problems is inner.problems
