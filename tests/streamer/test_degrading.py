"""A stream that misses its budget does less, and more again when it can, without going to and fro."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whet.errors import OptionError
from whet.streamer.quality_controller import WINDOW, Controller, Level, levels_of

BUDGET = 0.040


def work(level: Level) -> float:
    """Return how much a frame takes at a level, relative to 4 steps at full size."""
    return (level.steps or 4) / 4 * level.scale**2


def simulate(controller: Controller, loads, seconds=0.035):
    """Run as many frames as there are loads; return the level after each."""
    levels = []
    for load in loads:
        controller.add(seconds * work(controller.level) * load)
        levels.append(controller.level)
    return levels


def num_changes(levels) -> int:
    """Return how often the level changed, of levels after each frame of a stream that began at 4 steps."""
    return sum(a != b for a, b in pairwise([Level(4), *levels]))


def test_levels_take_steps_then_pixels_then_frames():
    assert levels_of(4, (1.0, 0.5), 3) == [
        Level(4),
        Level(2),
        Level(1),
        Level(1, 0.5),
        Level(1, 0.5, 2),
        Level(1, 0.5, 3),
    ]
    assert levels_of(None) == [Level(), Level(every=2), Level(every=3), Level(every=4)]
    assert str(Level(2, 0.5, 2)) == "2 steps, frames of 50% height and width, one frame of 2 computed"
    assert str(Level()) == "all frames computed"


@pytest.mark.parametrize(
    ("steps", "scales", "gap"), [(0, (1.0,), 2), (2, (), 2), (2, (0.5, 1.0), 2), (2, (1.0,), 0), (2, (1.5,), 2)]
)
def test_wrong_levels_are_refused(steps, scales, gap):
    with pytest.raises(OptionError):
        levels_of(steps, scales, gap)
    with pytest.raises(OptionError):
        Controller([], 0.04)
    with pytest.raises(OptionError):
        Controller([Level()], 0)


def test_a_stream_within_its_budget_stays():
    controller = Controller(levels_of(4), BUDGET)
    assert set(simulate(controller, [1.0] * 1000)) == {Level(4)}


def test_one_late_frame_changes_nothing():
    controller = Controller(levels_of(4), BUDGET)
    loads = [3.0 if k % 50 == 0 else 1.0 for k in range(1000)]
    assert set(simulate(controller, loads)) == {Level(4)}


def test_a_load_degrades_and_its_end_recovers():
    controller = Controller(levels_of(4), BUDGET)
    levels = simulate(controller, [1.0] * 100 + [1.8] * 200 + [0.9] * 400)
    assert levels[99] == Level(4)
    assert levels[150] == Level(2)
    assert levels[-1] == Level(4)


def test_two_changes_in_a_row_are_both_undone():
    controller = Controller(levels_of(4, (1.0, 0.5)), BUDGET)
    levels = simulate(controller, [1.0] * 50 + [6.0] * 300 + [0.8] * 1500)
    assert levels[340].steps == 1
    assert levels[-1] == Level(4)


def test_a_load_that_stays_is_not_tried_for_ever():
    """4 steps just don't fit, 2 fit well: each failed return doubles the wait."""
    controller = Controller(levels_of(4), BUDGET)
    loads = [1.2] * 20_000
    levels = simulate(controller, loads)
    assert levels[-1] == Level(2)
    assert num_changes(levels) <= 3  # the level above is known not to fit, so that it isn't tried


def test_returns_that_fail_become_rare():
    """The machine is fast while the stream rests at 2 steps, and slow whenever it takes 4.

    The waits double from 48 to 1,536 frames, so that 20,000 frames see at most 6 + 17,000 / 1,536 returns.
    """
    controller = Controller(levels_of(4), BUDGET)
    levels = []
    for _ in range(20_000):
        load = 1.3 if controller.level.steps == 4 else 0.7
        levels += simulate(controller, [load])
    assert 8 <= num_changes(levels) <= 2 * (6 + 12) + 1


def test_skipping_frames_gives_each_computed_one_their_time():
    controller = Controller(levels_of(None), BUDGET)
    for _ in range(500):
        controller.add(0.07)
    assert controller.level == Level(every=2)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=400), st.integers(1, 8))
def test_levels_change_by_one_and_stay_in_the_list(loads, steps):
    levels = levels_of(steps, (1.0, 0.75))
    controller = Controller(levels, BUDGET)
    before = 0
    for load in loads:
        changed = controller.add(0.03 * load)
        now = levels.index(controller.level)
        assert abs(now - before) <= 1 and (changed is not None) == (now != before)
        before = now


@given(st.integers(1, 8))
def test_three_late_frames_of_a_window_are_enough(first):
    controller = Controller(levels_of(4), BUDGET)
    changed = [controller.add(0.05 if first <= k < first + 3 else 0.03) for k in range(WINDOW * 2)]
    assert any(changed)
