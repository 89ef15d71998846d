"""The built-in stream: its size, what its frames depend on, and that commands know it."""

from pathlib import Path

import pytest
import torch
from benchmarks.built_in_weights.signs_noise import student_steps
from benchmarks.built_in_weights.signs_quality import UnseenClips, bicubic, drawn, measured
from benchmarks.built_in_weights.signs_stream import _by

import whet
from whet.errors import OptionError, StreamTarget, TargetError
from whet.models.diffusion.unet import load_unet
from whet.streamer.stream import Stream, StreamOptions
from whet.streamer.target_name import names_a_stream
from whet.streamer.targets import open_target
from whet.workloads import BUILTIN_STREAMS, WEIGHTS, signs_stream
from whet.workloads.signs_classifier import load_classifier
from whet.workloads.signs_data import read_photos, split_photos
from whet.workloads.target import resolve, resolve_any
from whet.workloads.target_name import check_name

ARCHIVE = Path(__file__).parents[3] / "shared" / "data" / "images" / "sign_digits.tar"


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
    with pytest.raises(StreamTarget, match="whet stream runs it, and whet tune makes it faster"):
        check_name("signs-stream")
    with pytest.raises(StreamTarget, match="whet stream runs it"):
        check_name("signs-stream?device=tpu")
    with pytest.raises(StreamTarget, match="signs-stream is a StreamWorkload; here whet takes an InferenceWorkload"):
        resolve("signs-stream")


def test_names_of_streams_are_told_from_others(tmp_path):
    assert all(names_a_stream(name) for name in BUILTIN_STREAMS)
    assert not any(names_a_stream(name) for name in ("digits-cnn", str(tmp_path), "a.py:build"))
    with pytest.raises(TargetError, match="or signs-stream"):
        open_target("sings-stream", StreamOptions())


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("sings-stream", r"did you mean signs-stream\? If not, give a directory of diffusers, .*, or signs-stream"),
        ("signs-stream?device=cuda", "give signs-stream alone; --device says where a stream runs"),
        ("digits-cnn", "digits-cnn is no stream; whet stream takes .*, or signs-stream"),
        ("docs-gpt-training", "docs-gpt-training is no stream"),
    ],
)
def test_other_names_are_refused_with_what_to_give(target, said):
    with pytest.raises(TargetError, match=said):
        open_target(target, StreamOptions())


@pytest.mark.parametrize(
    ("option", "said"), [({"strength": 0.5}, "^signs-stream draws"), ({"size": (32, 32)}, "^signs-stream has")]
)
def test_messages_name_the_stream_and_no_directory_of_the_package(option, said):
    with pytest.raises(OptionError, match=said):
        open_target("signs-stream", StreamOptions(**option))


def test_another_device_is_refused_rather_than_ignored(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    with pytest.raises(TargetError, match="whet stream --device cuda"):
        resolve_any("signs-stream?device=cuda")


@pytest.mark.realdata
@pytest.mark.skipif(not ARCHIVE.is_file(), reason=f"{ARCHIVE} is not there")
def test_one_step_draws_unseen_people_as_the_student_and_not_as_its_teacher():
    photos = split_photos(read_photos(ARCHIVE))["test"]
    clips = UnseenClips.of(photos, num_photos=48, num_frames=2)
    found, blurred = (
        measured(drawn(clips, draw), clips, load_classifier())
        for draw in (_by(load_unet(signs_stream.directory()), student_steps(1)), bicubic)
    )
    # The weights of the teacher have the same shapes. In one step they reach an SSIM of about 0.80, the student 0.88.
    assert found.ssim > 0.85
    assert found.psnr_db > blurred.psnr_db + 3
    assert found.accuracy > 0.85 > blurred.accuracy


def test_missing_weights_say_how_they_are_made(tmp_path):
    with pytest.raises(
        TargetError, match=r"train it with python -m benchmarks.built_in_weights signs-stream --data FILE"
    ):
        signs_stream.build(tmp_path)
