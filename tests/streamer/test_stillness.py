"""A still scene's frames are skipped, and a moving one's are not."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whet.errors import OptionError
from whet.streamer.frame_skip_filter import FrameSkipFilter


def noise(seed: int, shape=(48, 64, 3)):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def test_equal_frames_are_skipped_up_to_the_cap():
    still = FrameSkipFilter(0.98, most_in_a_row=4)
    assert [still.skips(noise(0)) for _ in range(11)] == [False, *[True] * 4, False, *[True] * 4, False]


def test_other_frames_are_computed():
    still = FrameSkipFilter(0.98)
    assert not any(still.skips(noise(seed)) for seed in range(50))


def test_frames_are_compared_with_the_last_computed_one():
    """A slow drift is seen: each frame is like the one before, but not like the one that was computed."""
    ramp = np.linspace(0, 1, 64)[None, :, None]
    frames = [(127.5 + 100 * np.sin(6 * ramp + 0.02 * k) + np.zeros((48, 64, 3))).astype(np.uint8) for k in range(200)]
    still = FrameSkipFilter(0.98, most_in_a_row=1000)
    skipped = [still.skips(frame) for frame in frames]
    assert any(skipped) and skipped.count(False) >= 3


@pytest.mark.parametrize("distance", [0.005, 0.015])
def test_the_chance_of_a_skip_is_the_papers(distance):
    """P(skip) = (cos - threshold) / (1 - threshold), for frames at a known angle."""
    first = np.zeros((64, 64, 3), np.float64)
    first[:, ::2] = 100
    first[:, 1::2] = -100
    other = np.where(np.arange(64)[:, None, None] % 2 == 0, 100.0, -100.0) * np.ones((64, 64, 3))
    angle = np.arccos(1 - distance)
    a = np.round(first + 127.5).astype(np.uint8)
    b = np.round(np.cos(angle) * first + np.sin(angle) * other + 127.5).astype(np.uint8)
    skips = 0
    for seed in range(600):
        still = FrameSkipFilter(0.98, seed=seed)
        still.skips(a)
        skips += still.skips(b)
    expected = 1 - distance / 0.02
    assert abs(skips / 600 - expected) < 4 * (expected * (1 - expected) / 600) ** 0.5 + 0.02


@settings(max_examples=50)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 5))
def test_never_more_in_a_row_than_the_cap(seeds, cap):
    still, in_a_row = FrameSkipFilter(0.5, most_in_a_row=cap), 0
    for seed in seeds:
        in_a_row = in_a_row + 1 if still.skips(noise(seed)) else 0
        assert in_a_row <= cap


def test_another_size_is_another_scene():
    still = FrameSkipFilter()
    still.skips(np.zeros((8, 8, 3), np.uint8))
    assert not still.skips(np.zeros((8, 9, 3), np.uint8))


@pytest.mark.parametrize(("threshold", "cap"), [(1.0, 10), (-0.1, 10), (0.98, 0)])
def test_wrong_options_are_refused(threshold, cap):
    with pytest.raises(OptionError):
        FrameSkipFilter(threshold, cap)
