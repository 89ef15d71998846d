"""False alarms are as rare as asked for, real changes are found, and clips read the same from both ends."""

import itertools

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from whet.streamer.drift.calibration import ALARMS
from whet.streamer.drift.measures import MEASURES
from whet.streamer.drift.meter import Series
from whet.streamer.drift.run import there_and_back
from whet.streamer.drift.trend import blocks, estimate, parts, resampled
from whet.streamer.drift.verdict import judge


def stationary(memory: float, num: int, seed: int) -> np.ndarray:
    """An autoregressive series of order 1 with unit variance."""
    steps = np.random.default_rng(seed).normal(size=num + 200) * np.sqrt(1 - memory**2)
    return scipy.signal.lfilter([1], [1, -memory], steps)[200:]


def series_of(memory: float, seed: int) -> Series:
    """600 frames in which every measure scatters about a level, far more than rounding explains."""
    values = {}
    for i, one in enumerate(MEASURES):
        drawn = stationary(memory, 600, seed * 100 + i)
        values[one.name] = np.exp(0.3 * drawn) if one.is_ratio else drawn
    return Series(values, np.ones(600, dtype=bool), np.zeros(600), 0.0)


@pytest.mark.parametrize("memory", [0.0, 0.9])
def test_false_alarms_over_all_measures_are_as_rare_as_asked_for(memory: float) -> None:
    """Of 100 stationary streams, more than 4 alarms at a rate of 1 % have a probability of 0.3 %."""
    alarms = sum(judge(series_of(memory, seed)).word == "drift" for seed in range(100))
    assert alarms <= 4


@pytest.mark.parametrize("memory", [0.0, 0.9])
def test_a_change_of_several_standard_deviations_is_found(memory: float) -> None:
    for seed in range(10):
        values = stationary(memory, 600, seed) + np.linspace(0, 8, 600)
        trend = estimate(values, level=ALARMS / 7, seed=0)
        assert trend is not None and trend.change > trend.chance
        assert trend.slope_interval[0] > 0


def test_the_interval_of_the_slope_covers_the_truth() -> None:
    covered = 0
    for seed in range(200):
        trend = estimate(stationary(0.8, 600, seed) + np.linspace(0, 1, 600), level=0.01, seed=seed)
        assert trend is not None
        covered += trend.slope_interval[0] <= 1 <= trend.slope_interval[1]
    assert covered / 200 >= 0.9


def test_change_and_slope_of_a_straight_line() -> None:
    trend = estimate(np.linspace(1, 3, 600), level=0.01, seed=0)
    assert trend is not None
    assert (trend.first, trend.last) == pytest.approx((1 + 2 * 44.5 / 599, 3 - 2 * 44.5 / 599))
    assert trend.slope == pytest.approx(2)
    assert trend.chance == pytest.approx(0, abs=1e-9)


def test_the_slope_leaves_out_what_the_scene_explains() -> None:
    scene = (np.arange(600) > 400).astype(float) + 0.1 * np.sin(np.arange(600) / 10)
    trend = estimate(5 * scene + np.linspace(0, 1, 600), level=0.01, seed=0, scene=scene)
    assert trend is not None
    assert trend.slope == pytest.approx(1)


def test_nothing_is_said_of_a_few_values() -> None:
    values = np.full(600, np.nan)
    values[:90] = 1
    assert estimate(values, level=0.01, seed=0) is None


def test_blocks_grow_with_memory() -> None:
    white, (slow, time) = blocks(stationary(0, 2000, 0))[0], blocks(stationary(0.95, 2000, 0))
    assert white == 20
    assert slow > 3 * white
    assert time == pytest.approx(39, rel=0.6)  # (1 + 0.95) / (1 - 0.95)


@given(st.integers(1, 60), st.integers(1, 12), st.integers(1, 50))
def test_resampled_series_are_made_of_neighbours(num: int, length: int, wanted: int) -> None:
    length = min(length, num)
    drawn = resampled(np.arange(num, dtype=float), length, wanted, 0, resamples=3)
    assert drawn.shape == (3, wanted)
    for begin in range(0, wanted, length):
        assert np.all(np.diff(drawn[:, begin : begin + length], axis=1) == 1)
    assert np.array_equal(drawn, resampled(np.arange(num, dtype=float), length, wanted, 0, resamples=3))


@given(st.integers(1, 30), st.integers(0, 100))
def test_a_clip_there_and_back_reads_the_same_from_both_ends(length: int, num_frames: int) -> None:
    shown = list(there_and_back(range(length), num_frames))
    assert len(shown) == num_frames and shown == shown[::-1]
    assert all(abs(a - b) <= 1 for a, b in itertools.pairwise(shown))  # without a cut
    assert set(shown) == set(range(min(length, (num_frames + 1) // 2)))


def test_the_parts_are_fifteen_percent() -> None:
    assert (parts(600), parts(120), parts(1)) == (90, 18, 1)
