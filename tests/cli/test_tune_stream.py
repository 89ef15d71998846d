"""whet tune on a stream: what it refuses before the work, and what it shows."""

import io
from pathlib import Path

import pytest
from rich.console import Console
from whet.cli.tune_stream import show
from whet.stream_tuner.result import Point, StreamTuning
from written_unets import write_unet

from whet.cli import main
from whet.models.diffusion.unet import UNetConfig
from whet.stream_tuner.quality import Figures


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    write_unet(tmp_path / "unet", UNetConfig(frame_size=16, grey_size=8, widths=(8, 8), embedding=16))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["unet", "--objective", "size"], "--objective size goes with a model, and"),
        (["unet", "--allow-batch"], "--allow-batch goes with a training, and"),
        (["unet", "--storage", "sqlite:///a.db"], "--storage goes with a model, a training or a script, and"),
        (["unet", "--resume", "--out", "x"], "--resume goes with a model, a training or a script, and"),
        (["unet", "--frame-budget", "soon"], "--frame-budget"),
        (["unet", "--frame-budget", "0ms"], "--frame-budget"),
        (["unet", "--source", "camera"], "camera"),
        (["unet", "--source", "nowhere.mp4"], "there is no source"),
        (["unet", "--sink", "out.mp4"], "name the kind of video that the stream will write, as .mp4, or null"),
        (["unet", "--sink", ".txt"], "no suffix of a video"),
        (["unet", "--data", "x.tar"], "--data goes with signs-stream"),
        (["unet", "--sampler", "heun"], "--sampler is one of"),
        (["unet", "--steps", "0"], "--steps"),
        (["unet", "--exclude", "magic"], "magic"),
        (
            ["digits-cnn", "--frame-budget", "40ms"],
            "--frame-budget goes with a stream, and digits-cnn is a model; leave it out",
        ),
        (
            ["digits-cnn", "--steps", "3"],
            "--steps goes with a script or a stream, and digits-cnn is a model; leave it out",
        ),
    ],
)
def test_mistakes_are_refused_in_one_line_before_anything_is_written(here, capsys, arguments, said):
    before = sorted(path.name for path in here.iterdir())
    with pytest.raises(SystemExit) as ended:
        main(["tune", *arguments])
    error = capsys.readouterr().err
    assert ended.value.code == 2, error
    assert said in " ".join(error.split()), error
    assert sorted(path.name for path in here.iterdir()) == before


def result(**values) -> StreamTuning:
    old = Figures(20.0, 0.8, 0.9, 0.01, 0.02, 0.95, (0.8, 0.8))
    fields = {
        "target": "signs-stream",
        "source": "synthetic",
        "objective": "fps",
        "budget_s": None,
        "max_drop": 0.01,
        "verdict": "gain",
        "sentence": "The stream answers 3x as many frames.",
        "original": Point(label="4 steps of lcm", s_per_frame=0.05, figures=old),
        "best": Point(label="1 step of lcm", models={"U-Net": "openvino"}, s_per_frame=0.0125, figures=old),
        "out": "whet-out/signs-stream",
    }
    return StreamTuning(**{**fields, **values})


@pytest.mark.parametrize("width", [80, 120])
def test_original_and_best_stand_side_by_side(width):
    text = io.StringIO()
    show(Console(file=text, width=width), result())
    lines = text.getvalue().splitlines()
    assert any(line.split() == ["frames/s", "20.0", "80.0"] for line in lines), text.getvalue()
    assert any("recognised" in line and "95" in line for line in lines)
    assert "U-Net: openvino" in lines
    assert all(len(line) <= width for line in lines)


def test_what_was_found_but_not_kept_is_shown_with_its_reason():
    text = io.StringIO()
    found = Point(label="1 step of lcm", s_per_frame=0.025)
    original = result().original
    show(
        Console(file=text, width=100),
        result(verdict="no-gain", best=original, rejected=((found, "slower"),), sentence="It is not kept."),
    )
    assert "40.0" in text.getvalue() and "It is not kept." in text.getvalue()
