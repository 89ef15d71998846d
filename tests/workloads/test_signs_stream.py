"""The built-in stream: its size, what its frames depend on, and that commands know it."""

import pytest
import torch

import whet
from whet.errors import OptionError, StreamTarget, TargetError
from whet.streamer.stream import Stream, StreamOptions
from whet.streamer.targets import names_a_stream, open_target
from whet.workloads import BUILTIN_STREAMS, WEIGHTS, signs_stream
from whet.workloads.target import check_name, resolve, resolve_any


def images(prompt: str | None, **options) -> list:
    with Stream("signs-stream", "synthetic:3", StreamOptions(steps=1, prompt=prompt, **options)) as stream:
        return [answer.image for answer in stream]


def test_it_is_small_and_has_about_4_million_parameters():
    stream = signs_stream.build()
    unet = stream.open().call_modules["U-Net"]
    assert 3.5e6 < sum(parameter.numel() for parameter in unet.parameters()) < 4.5e6
    assert sum(file.stat().st_size for file in (WEIGHTS / "signs-stream").iterdir()) < 10e6


def test_frames_depend_on_the_prompt_and_not_on_chance():
    three, seven, none = images("3"), images("7"), images(None)
    assert three[0].shape == (64, 64, 3)
    assert all((a == b).all() for a, b in zip(three, images("3"), strict=True))
    assert (three[0] != seven[0]).any() and (three[0] != none[0]).any()


def test_a_prompt_that_is_no_digit_is_refused():
    with pytest.raises(OptionError, match="this model takes a digit, as 3, or nothing"):
        open_target("signs-stream", StreamOptions(prompt="a hand"))


def test_it_is_a_workload_that_can_be_compared():
    workload = resolve_any("signs-stream")
    assert isinstance(workload, whet.StreamWorkload) and workload.name == "signs-stream"
    step = workload.open()
    with torch.inference_mode():
        answers = [step(frame) for frame in list(workload.frames)[:2]]
    assert all(answer.shape == (3, 64, 64) and torch.isfinite(answer).all() for answer in answers)


def test_commands_for_models_say_that_it_is_a_stream():
    check_name("signs-stream")
    with pytest.raises(StreamTarget, match="signs-stream is a StreamWorkload; here whet takes an InferenceWorkload"):
        resolve("signs-stream")


def test_names_of_streams_are_told_from_others(tmp_path):
    assert all(names_a_stream(name) for name in BUILTIN_STREAMS)
    assert not any(names_a_stream(name) for name in ("digits-cnn", str(tmp_path), "a.py:build"))
    with pytest.raises(TargetError, match="or signs-stream"):
        open_target("sings-stream", StreamOptions())


def test_missing_weights_say_how_they_are_made(tmp_path):
    with pytest.raises(TargetError, match=r"train it with python -m whet.workloads.train signs-stream --data FILE"):
        signs_stream.build(tmp_path)
