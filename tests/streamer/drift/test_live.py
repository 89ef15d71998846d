"""What a page shows of drift while a stream runs, against what was done to the frames."""

import numpy as np
import pytest

from whet.streamer.drift.live import NUM_COMPARED, LiveDrift

Clip = list[np.ndarray]


class Clock:
    """A clock that each call advances by the same time."""

    def __init__(self, pause_s: float) -> None:
        self.now, self.pause_s = 0.0, pause_s

    def __call__(self) -> float:
        self.now += self.pause_s
        return self.now


def test_nothing_is_said_before_there_is_a_beginning(panning: Clip) -> None:
    drift = LiveDrift(Clock(1.0))
    for frame in panning[: NUM_COMPARED - 1]:
        drift.add(frame, frame)
    assert drift.figures() is None
    drift.add(panning[0], panning[0])
    found = drift.figures()
    assert found is not None
    assert found["contrast"].first == found["contrast"].last == pytest.approx(1.0)
    assert found["colour"].last == pytest.approx(0.0, abs=1e-6)


def test_a_contrast_that_fades_is_shown(panning: Clip) -> None:
    drift = LiveDrift(Clock(1.0))
    for i, frame in enumerate(panning[:200]):
        mean = frame.mean(axis=(0, 1), keepdims=True)
        faded = mean + (frame - mean) * (1 - 0.5 * i / 199)
        drift.add(faded.round().clip(0, 255).astype(np.uint8), frame)
    found = drift.figures()
    assert found is not None
    assert found["contrast"].first == pytest.approx(1 - 0.5 * 9.5 / 199, abs=0.03)
    assert found["contrast"].last == pytest.approx(1 - 0.5 * 189.5 / 199, abs=0.03)
    assert found["colour"].first is not None and found["colour"].last is not None
    assert found["colour"].last > found["colour"].first + 0.05
    drift.restart()
    assert drift.figures() is None


def test_answers_in_between_are_not_measured(panning: Clip) -> None:
    drift = LiveDrift(Clock(0.01))  # one of 25 or so is measured
    for frame in panning[: 20 * (NUM_COMPARED - 1)]:
        drift.add(frame, frame)
    assert drift.figures() is None


def test_a_flat_input_has_no_ratio() -> None:
    drift, flat = LiveDrift(Clock(1.0)), np.full((24, 40, 3), 90, np.uint8)
    for _ in range(NUM_COMPARED):
        drift.add(np.full((48, 80, 3), 90, np.uint8), flat)
    found = drift.figures()
    assert found is not None
    assert found["contrast"].last is None and found["sharpness"].first is None
    assert found["colour"].last == pytest.approx(0.0, abs=1e-6)
