"""A stream runs from its source to its sink, in Python and with asyncio, and says how it went."""

import asyncio
import json
import os
import signal
import threading

import numpy as np
import pytest
import torch
from stream_fakes import Delayed, Listed, Recorder, negative

import whet
from whet.errors import ModelError, OptionError, OutputError, TargetError
from whet.streamer.report import Spread, StreamReport
from whet.streamer.stream import Stream, StreamOptions
from whet.streamer.targets import open_target


def workload(open_step=lambda: negative, channels=3, **options) -> whet.StreamWorkload:
    return whet.StreamWorkload(open=open_step, frames=[torch.rand(channels, 8, 8)], name="negative", **options)


def stream(source, open_step=lambda: negative, **options) -> Stream:
    return Stream(workload(open_step), lambda size: source, StreamOptions(**options))


def test_a_stream_is_iterated_once_and_closes_its_source():
    source = Listed(5)
    with stream(source) as running:
        assert [answer.frame.index for answer in running] == list(range(5))
        assert source.is_closed
        with pytest.raises(TargetError, match="runs once"):
            next(iter(running))


def test_asyncio_gets_the_same_answers():
    async def collect():
        return [answer.frame.index async for answer in stream(Listed(6), lambda: Delayed(2))]

    assert asyncio.run(collect()) == list(range(6))


def test_all_answers_reach_the_sink_with_their_times():
    sink = Recorder()
    report = stream(Listed(12), lambda: Delayed(3)).run(sink)
    assert sink.is_closed
    assert [int(image[0, 0, 0]) for image in sink.images] == [255 - k for k in range(12)]
    assert sink.times == [k / 25 for k in range(12)]
    assert report.counts["written"] == report.counts["final"] == report.counts["arrived"] == 12
    assert report.frame.count == 14  # two calls fill the batch and two empty it
    assert report.frame.p50 <= report.frame.p90 <= report.frame.p99 <= report.frame.longest
    assert report.steps == 3 and report.verdict is None
    read = json.loads(report.to_json())
    assert read["counts"] == report.counts and read["schema"] == 1


def test_latency_is_that_of_computed_frames_and_repeats_are_counted_apart():
    report = stream(Listed(40, levels=[5] * 40), stillness=0.98).run(Recorder())
    assert report.counts["still"] > report.counts["final"] > 0
    assert report.latency.count == report.counts["final"]
    assert report.repeats.count == report.counts["still"]
    assert stream(Listed(5)).run(Recorder()).repeats is None
    broken = stream(Listed(5), lambda: lambda frame: frame * torch.nan).run(Recorder())
    assert broken.latency.count == 5  # the model ran for them


def test_a_sink_that_fails_ends_the_stream_and_is_closed():
    sink = Recorder(fails_at=3, error=OutputError("the disk is full"))
    running = stream(Listed(10_000))
    with pytest.raises(OutputError, match="the disk is full"):
        running.run(sink)
    assert sink.is_closed and len(sink.images) == 3
    assert running.report().error == "the disk is full"


def test_a_model_that_fails_keeps_what_was_written():
    def step(frame):
        if frame[0, 0, 0] > 4.5 / 255:
            raise ValueError("no more")
        return frame

    sink, running = Recorder(), stream(Listed(10), lambda: step)
    with pytest.raises(ModelError, match="ValueError: no more"):
        running.run(sink)
    assert sink.is_closed and len(sink.images) == 5


def test_ctrl_c_finishes_the_sink():
    sink, running = Recorder(), stream(Listed(10_000))

    def interrupt(answer):
        if answer.frame.index == 4:
            raise KeyboardInterrupt

    report = running.run(sink, on_answer=interrupt)
    assert report.interrupted and sink.is_closed
    assert len(sink.images) == 5


def test_ctrl_c_while_the_sink_is_finished_waits_for_it():
    """A signal to the process while the writer still writes must not leave half a video."""
    sink = Recorder()
    sink.open_gate.clear()

    def end(answer):
        if answer.frame.index == 2:
            threading.Timer(0.2, lambda: (os.kill(os.getpid(), signal.SIGINT), sink.open_gate.set())).start()

    report = stream(Listed(3)).run(sink, on_answer=end)
    assert report.interrupted and sink.is_closed
    assert len(sink.images) == 3


def test_asyncio_calls_the_model_in_one_thread():
    threads = set()

    def step(frame):
        threads.add(threading.get_ident())
        return frame

    async def collect():
        async for _ in stream(Listed(20), lambda: step):
            await asyncio.sleep(0)

    asyncio.run(collect())
    assert len(threads) == 1 and threading.get_ident() not in threads


def test_a_model_that_is_open_begins_anew_with_each_stream():
    opened = open_target(workload(lambda: Delayed(3)), StreamOptions())
    first = Stream(opened, lambda size: Listed(5))
    next(iter(first))
    opened.model.change(1)
    answers = list(Stream(opened, lambda size: Listed(4), StreamOptions(warms_up=False)))
    assert [int(answer.image[0, 0, 0]) for answer in answers] == [255, 254, 253, 252]
    assert opened.model.steps == 3


def test_answers_that_are_not_written_count_against_a_budget():
    sink = Recorder()
    sink.open_gate.clear()
    running = stream(Listed(200, is_live=True), budget_s=10.0)
    report = running.run(sink, on_answer=lambda answer: answer.frame.index == 199 and sink.open_gate.set())
    lost = report.counts.get("unwritten", 0) + report.counts.get("dropped", 0)
    assert lost > 0 and report.late_share == lost / 200


def test_a_slow_sink_holds_up_a_file_and_not_a_camera():
    for is_live in (False, True):
        sink = Recorder()
        sink.open_gate.clear()
        running = stream(Listed(50, is_live=is_live))

        def let_go(answer, sink=sink, is_live=is_live):
            if answer.frame.index == (49 if is_live else 3):
                sink.open_gate.set()

        report = running.run(sink, on_answer=let_go)
        if is_live:
            assert report.counts.get("unwritten", 0) + report.counts.get("dropped", 0) > 0
            assert sink.images[-1][0, 0, 0] == 255 - 49
        else:
            assert len(sink.images) == 50 and "unwritten" not in report.counts


def test_a_warm_up_leaves_no_trace():
    step = Delayed(2)
    answers = list(stream(Listed(4), lambda: step))
    assert step.num_calls > 5  # the warm-up called it too
    assert [int(answer.image[0, 0, 0]) for answer in answers] == [255, 254, 253, 252]


def test_the_workloads_budget_holds_where_none_is_given():
    running = Stream(workload(frame_budget_s=0.5), lambda size: Listed(3))
    list(running)
    assert running.report().budget_s == 0.5
    assert (
        Stream(workload(frame_budget_s=0.5), lambda size: Listed(3), StreamOptions(budget_s=0.1)).timings.budget_s
        == 0.1
    )


def test_models_without_prompt_or_guidance_say_so():
    running = stream(Listed(1))
    with pytest.raises(OptionError, match="negative takes no text"):
        running.change_prompt("a cat")
    with pytest.raises(OptionError, match="takes no guidance"):
        running.change_guidance(whet_guidance())


def whet_guidance():
    from whet.models.diffusion.guidance import Guidance

    return Guidance("self", 1.2)


@pytest.mark.parametrize(
    ("target", "options", "said"),
    [
        ("nothing-here", {}, "neither a directory nor FILE.py:FUNCTION"),
        ("missing.py:f", {}, "no file missing.py"),
        ("digits-cnn:", {}, "FUNCTION"),
    ],
)
def test_wrong_targets_are_refused(target, options, said):
    with pytest.raises(TargetError, match=said):
        Stream(target, "synthetic:2", StreamOptions(**options))


def test_options_of_diffusion_are_refused_for_a_users_own_step():
    for options in ({"steps": 2}, {"sampler": "lcm"}, {"rolling": False}, {"prompt": "a"}):
        with pytest.raises(OptionError, match="a function of your own, which takes no --"):
            stream(Listed(1), **options)
    with pytest.raises(OptionError, match="a seed is a whole number from 0"):
        stream(Listed(1), seed=2**63)
    with pytest.raises(OptionError, match="a budget is above 0"):
        stream(Listed(1), budget_s=-1.0)


@pytest.mark.parametrize(
    ("frames", "said"),
    [([], "at least one"), ([torch.rand(2, 8, 8)], "1 or 3 channels"), ([np.zeros((3, 8, 8))], "must be tensors")],
)
def test_workloads_without_usable_frames_are_refused(frames, said):
    with pytest.raises(TargetError, match=said):
        Stream(whet.StreamWorkload(open=lambda: negative, frames=frames), "synthetic:2")


def report_of(**values) -> StreamReport:
    spread = Spread(0.01, 0.02, values.pop("p99", 0.03), 0.04, values.pop("count", 1000))
    defaults = {
        "target": "t", "source": "s", "sink": "k", "size": (8, 8), "steps": 2, "sampler": "lcm", "counts": {},
        "wall_s": 10.0, "final_fps": 50.0, "frame": spread, "model": spread, "latency": spread, "interval": spread,
        "jitter_s": 0.001, "budget_s": 0.04, "late_share": 0.0,
    }  # fmt: skip
    return StreamReport(**{**defaults, **values})


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ({}, "held"),
        ({"p99": 0.041}, "missed"),
        ({"late_share": 0.0011}, "missed"),
        ({"late_share": 0.001}, "held"),
        ({"levels": ((30, "1 step"),)}, "missed"),
        ({"count": 99}, "inconclusive"),
        ({"busy": "other processes used 1 core"}, "inconclusive"),
        ({"budget_s": None, "late_share": None}, None),
    ],
)
def test_a_budget_has_a_verdict_only_where_it_can_be_told(values, verdict):
    assert report_of(**values).verdict == verdict


class Kept:
    """Be an outlet that keeps the answers."""

    name = "kept"

    def __init__(self):
        self.answers, self.is_closed = [], False

    def take(self, answer):
        self.answers.append(answer)

    def close(self):
        self.is_closed = True


def test_an_outlet_gets_the_answers_themselves_and_each_frame_is_named_once_it_is_taken():
    outlet, taken = Kept(), []
    running = Stream(
        workload(lambda: Delayed(3)), lambda size: Listed(7), on_taken=lambda frame: taken.append(frame.index)
    )
    report = running.deliver(outlet)
    assert outlet.is_closed and report.sink == "kept"
    assert [answer.frame.index for answer in outlet.answers] == taken == list(range(7))


def test_a_frame_is_taken_before_its_answer_where_several_are_in_flight():
    taken = []
    running = Stream(
        workload(lambda: Delayed(3)), lambda size: Listed(7), on_taken=lambda frame: taken.append(frame.index)
    )
    seen = [(answer.frame.index, len(taken)) for answer in running]
    # Frame 0 comes out as frame 2 enters; the last two come out at the end.
    assert seen == [(0, 2), (1, 3), (2, 4), (3, 5), (4, 6), (5, 7), (6, 7)]


def test_one_model_serves_one_stream_after_the_other():
    opened = open_target(workload(), StreamOptions())
    for num in (3, 4):
        with Stream(opened, lambda size, num=num: Listed(num)) as running:
            assert running.opened is opened
            assert [int(answer.image[0, 0, 0]) for answer in running] == [255 - k for k in range(num)]
