"""Each frame gets one answer, in order, whatever the source, the model and the scene do."""

import threading
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_fakes import Delayed, Listed, negative

from whet.errors import ModelError, TargetError
from whet.streamer.frame_skip_filter import FrameSkipFilter
from whet.streamer.loop import Loop, LoopOptions
from whet.streamer.model import FrameModel, as_image
from whet.streamer.timings import Timings


def run(step, source, **options):
    timings = Timings(options.get("budget_s"))
    loop = Loop(FrameModel(step), source, LoopOptions(**options), timings)
    return list(loop), timings


def level(answer):
    assert (answer.image == answer.image[0, 0, 0]).all()
    return int(answer.image[0, 0, 0])


@pytest.mark.parametrize("num_steps", [0, 1, 2, 5])
def test_each_frame_gets_its_answer(num_steps):
    answers, timings = run(Delayed(num_steps) if num_steps else negative, Listed(20))
    assert [answer.frame.index for answer in answers] == list(range(20))
    assert [level(answer) for answer in answers] == [255 - k for k in range(20)]
    assert {answer.kind for answer in answers} == {"computed"}
    assert timings.counts["arrived"] == timings.counts["final"] == 20
    assert timings.counts["dropped"] == 0


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 2), max_size=30), st.integers(1, 5), st.integers(1, 4))
def test_a_still_scene_gets_its_answers_and_repeats_them(levels, steps, cap):
    """With equal frames and others that are never alike, each answer is the negative of a frame as bright."""
    step = Delayed(steps)
    source = Listed(len(levels), levels=[100 * value for value in levels])
    answers, timings = run(step, source, stillness=FrameSkipFilter(0.9999, most_in_a_row=cap))
    assert [answer.frame.index for answer in answers] == list(range(len(levels)))
    computed = [answer for answer in answers if answer.kind == "computed"]
    assert all(level(answer) == 255 - 100 * levels[answer.frame.index] for answer in computed)
    assert timings.counts["final"] == len(computed)
    assert timings.counts["still"] == len(levels) - len(computed)
    for before, answer in pairwise(answers):
        if answer.kind == "still":
            assert level(answer) == level(before)  # what was shown stays


def test_a_still_scene_advances_what_is_in_flight():
    step = Delayed(4)
    answers, _ = run(step, Listed(10, levels=[50] * 10), stillness=FrameSkipFilter(0.98, most_in_a_row=100))
    assert step.num_calls == 4  # one frame, four steps
    assert [answer.kind for answer in answers] == ["computed", *["still"] * 9]
    assert {level(answer) for answer in answers} == {205}


def test_frames_that_are_not_finite_are_counted_and_the_answer_before_is_shown():
    def step(frame):
        return frame * torch.nan if round(float(frame[0, 0, 0]) * 255) in (3, 4, 7) else 1 - frame

    answers, timings = run(step, Listed(9))
    assert [answer.kind == "not finite" for answer in answers] == [k in (3, 4, 7) for k in range(9)]
    assert [level(answer) for answer in answers] == [255, 254, 253, 253, 253, 250, 249, 249, 247]
    assert timings.counts["not_finite"] == 3 and timings.counts["final"] == 6


def test_before_the_first_answer_black_is_shown():
    answers, _ = run(lambda frame: frame * torch.inf, Listed(3, levels=[7, 8, 9]))
    assert [level(answer) for answer in answers] == [0, 0, 0]
    assert {answer.kind for answer in answers} == {"not finite"}


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (lambda frame: frame[0], r"returns frames \[C, H, W\].* got float32 \(8, 8\)"),
        (lambda frame: [frame], "got list"),
        (lambda frame: frame[:, :0], r"got float32 \(3, 0, 8\)"),
        (lambda frame: (frame * 255).byte(), "got uint8"),
        (lambda frame: frame * 1j, "got complex64"),
        (lambda frame: None, "owes 1 answers, and has in_flight = 0"),
        (lambda frame: 1 / 0, "ZeroDivisionError: division by zero"),
    ],
)
def test_a_wrong_model_ends_the_stream_with_its_reason(step, said):
    source = Listed(5)
    with pytest.raises(ModelError, match=said):
        run(step, source)


def test_a_calls_conversions_are_not_the_models_time():
    """The clock is the test's own: the model takes 5 ms, and what is around it 20 ms."""
    now = [0.0]

    def step(frame):
        now[0] += 0.005
        return frame

    class Converting(FrameModel):
        def as_input(self, image, scale=1.0):
            now[0] += 0.020
            return super().as_input(image, scale)

    timings = Timings()
    list(Loop(Converting(step), Listed(10), LoopOptions(), timings, clock=lambda: now[0]))
    assert timings.model_s.percentile_s(50) == pytest.approx(0.005, rel=0.02)
    assert timings.frame_s.percentile_s(50) == pytest.approx(0.025, rel=0.02)


@pytest.mark.parametrize("steps", ["four", 0, 1.5])
def test_steps_that_are_no_number_are_refused(steps):
    step = Delayed(2)
    step.steps = steps
    with pytest.raises(ModelError, match="a whole number above 0"):
        FrameModel(step)


def test_a_step_without_reset_is_opened_anew():
    def opening():
        seen = []
        return lambda frame: frame * 0 + len(seen) / 255 if seen.append(1) is None else None

    model = FrameModel(opening(), reopen=opening)
    frame = torch.zeros(3, 2, 2)
    model(frame)
    assert float(model(frame)[0, 0, 0]) * 255 == pytest.approx(2)
    model.restart()
    assert float(model(frame)[0, 0, 0]) * 255 == pytest.approx(1)


def test_frames_in_flight_that_never_came_are_refused():
    class Babbling(Delayed):
        in_flight = 1

        def advance(self):
            return torch.zeros(3, 8, 8)

        def __call__(self, frame):
            return 1 - frame

    with pytest.raises(ModelError, match="owes 0 answers, and has in_flight = 1"):
        run(Babbling(), Listed(2))


def test_a_source_that_fails_is_heard_after_the_frames_before():
    source, answers = Listed(9, fails_at=4, error=TargetError("the camera went away")), []
    with pytest.raises(TargetError, match="the camera went away"):
        for answer in Loop(FrameModel(Delayed(3)), source, LoopOptions(), Timings()):
            answers += [answer.frame.index]
    assert answers == [0, 1, 2, 3]
    assert source.is_closed


def test_a_live_source_drops_the_oldest_and_the_newest_is_next():
    """The model waits in its first call until all frames have come: only the first and the newest are answered."""
    all_came, computing = threading.Event(), threading.Event()

    def gate(at):
        if at == 1:
            computing.wait(30)
        if at == 9:
            all_came.set()

    def step(frame):
        computing.set()
        all_came.wait(30)
        finished.wait(30)
        return 1 - frame

    finished = threading.Event()
    source = Listed(10, is_live=True, gate=gate)
    timings = Timings()
    loop = Loop(FrameModel(step), source, LoopOptions(), timings)

    def end_the_first_call():
        all_came.wait(30)
        _until(lambda: timings.counts["dropped"] == 8)
        finished.set()

    threading.Thread(target=end_the_first_call).start()
    answers = list(loop)
    assert [answer.frame.index for answer in answers] == [0, 9]
    assert timings.counts["dropped"] == 8
    assert timings.late_share() is None


def _until(condition):
    waiting = threading.Event()
    for _ in range(3000):
        if condition():
            return
        waiting.wait(0.01)


def test_a_missed_budget_changes_the_level_and_says_so():
    """The clock is the test's own: each call of the model takes 15 ms a step."""
    now = [0.0]
    step = Delayed(4)
    inner = step.advance

    def advance():
        now[0] += 0.015 * step.steps
        return inner()

    step.advance = advance
    levels, timings = [], Timings(0.04)
    loop = Loop(
        FrameModel(step), Listed(200), LoopOptions(budget_s=0.04), timings, clock=lambda: now[0], on_level=levels.append
    )
    answers = list(loop)
    assert [answer.frame.index for answer in answers] == list(range(200))
    assert [found.steps for found in levels] == [2]
    assert loop.level.steps == 2
    assert {answer.kind for answer in answers} == {"computed", "discarded"}
    assert 0 < timings.counts["late"] < 10
    assert timings.counts["discarded"] == sum(answer.kind == "discarded" for answer in answers) == 3
    assert timings.counts["final"] + timings.counts["discarded"] == timings.counts["arrived"] == 200


def test_skipped_frames_repeat_the_answer_before():
    now = [0.0]

    def step(frame):
        now[0] += 0.07
        return 1 - frame

    timings = Timings(0.04)
    loop = Loop(FrameModel(step), Listed(100), LoopOptions(budget_s=0.04), timings, clock=lambda: now[0])
    answers = list(loop)
    assert len(answers) == 100 and loop.level.every == 2
    kinds = [answer.kind for answer in answers[20:]]
    assert kinds == ["skipped", "computed"] * 40 or kinds == ["computed", "skipped"] * 40
    for before, answer in pairwise(answers):
        if answer.kind == "skipped":
            assert level(answer) == level(before)
    assert 0 < timings.counts["late"] < 10  # before the level changed: then a computed frame has the time of two


def test_requests_are_met_in_the_models_thread_before_the_next_frame():
    seen = []
    source = Listed(3, gate=lambda at: gates[at].wait(30))
    gates = [threading.Event() for _ in range(3)]
    loop = Loop(FrameModel(lambda frame: seen.append("frame") or frame), source, LoopOptions(), Timings())
    gates[0].set()
    for answer in loop:
        if answer.frame.index == 0:
            loop.ask(lambda: seen.append(threading.current_thread()))
            gates[1].set()
            gates[2].set()
    assert seen == ["frame", threading.main_thread(), "frame", "frame"]


def test_a_stopped_loop_ends_and_frees_its_reader():
    source = Listed(10**9)
    loop = Loop(FrameModel(negative), source, LoopOptions(), Timings())
    num = 0
    for _ in loop:
        num += 1
        if num == 5:
            loop.stop()
    assert num == 5


@pytest.mark.parametrize("shape", [(1, 4, 4), (3, 4, 4)])
def test_images_round_to_the_nearest_of_256_levels(shape):
    values = torch.linspace(-0.2, 1.2, 16 * shape[0]).view(shape)
    image = as_image(values)
    expected = np.clip(np.rint(values.numpy() * 255), 0, 255).astype(np.uint8)
    assert (image == np.broadcast_to(expected, (3, 4, 4)).transpose(1, 2, 0)).all()
    assert image.flags.c_contiguous and image.shape == (4, 4, 3)
    assert as_image(values, (8, 6)).shape == (8, 6, 3)


def test_grey_models_see_luma_and_smaller_frames_where_asked():
    image = np.zeros((8, 8, 3), np.uint8)
    image[..., 1] = 255
    frame = FrameModel(negative, channels=1).as_input(image, 0.5)
    torch.testing.assert_close(frame, torch.full((1, 4, 4), 0.587))
