"""whet tune on a stream: what it refuses before the work, and what it shows."""

import io
from pathlib import Path

import pytest
from rich.console import Console
from written_unets import write_unet

from whet.cli import main
from whet.cli.stream_tables import show_result
from whet.models.diffusion.unet import UNetConfig
from whet.tuner.records import StreamFigures
from whet.tuner.result import MeasuredVariant, Result
from whet.tuner.streams.report import render
from whet.tuner.streams.techniques import step


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
        (["unet", "--max-memory", "1GB"], "--max-memory goes with a model, a training or a script, and unet is a"),
        (["unet", "--resume", "--out", "x"], "holds no search to go on with"),
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


def point(label: str, latency_ms: float, **known) -> MeasuredVariant:
    old = StreamFigures(psnr_db=20.0, ssim=0.8, sharpness=0.9, flicker=0.01, warp_error=0.02, accuracy=0.95)
    fields = {"latency_ms": latency_ms, "throughput_per_s": 1e3 / latency_ms, "peak_bytes": 0, "size_bytes": 0}
    steps = () if label == "original" else (step("sampling", steps=1, sampler="lcm"), step("tuned_models"))
    return MeasuredVariant(**{**fields, "label": label, "steps": steps, "stream": old, **known})


def result(**values) -> Result:
    best = point("best", 12.5, speedup=4.0, speedup_ci95=(3.8, 4.2), verdict="pass")
    fields = {
        "kind": "stream",
        "target": "signs-stream",
        "source": "synthetic",
        "objective": "throughput",
        "verdict": "gain",
        "sentence": "best: 4.00x (3.80–4.20), 80.0 in place of 20.0 frames a second, at the same quality.",
        "quality_name": "structural similarity",
        "baseline": point("original", 50.0),
        "best": best,
        "finalists": [best],
        "out": "whet-out/signs-stream",
        "unsaved": "what is kept is a stream: whet stream whet-out/signs-stream",
    }
    return Result(**{**fields, **values})


@pytest.mark.parametrize("width", [80, 120])
def test_original_and_best_stand_side_by_side(width):
    text = io.StringIO()
    show_result(Console(file=text, width=width), result())
    lines = text.getvalue().splitlines()
    assert any(line.split() == ["frames/s", "20.0", "80.0"] for line in lines), text.getvalue()
    assert any("recognised" in line and "95" in line for line in lines)
    assert any("whet stream whet-out/signs-stream" in line for line in lines)
    assert all(len(line) <= width for line in lines)


def test_what_was_found_but_not_kept_is_shown_with_its_reason():
    text, kept = io.StringIO(), point("original", 50.0)
    sentence = "best is better (4.00x), but on unseen clips it is blurred. The original stays."
    show_result(Console(file=text, width=100), result(verdict="no-gain", best=kept, sentence=sentence))
    assert "80.0" in text.getvalue() and "it is blurred" in text.getvalue()


def test_the_page_shows_the_quality_beside_the_times():
    page = render(result(), "kind = 'stream'")
    assert "most frames of the same quality" in page and "Recognised" in page and "95%" in page
    assert "best quality within 40.0 ms a frame" in render(result(within_s=0.04, objective="quality"), "")
