"""whet stream from the command line: what it writes, prints and refuses."""

import json
import sys

import pytest

from whet.cli import main

TARGET = """
import torch
import whet


def build():
    return whet.StreamWorkload(open=lambda: lambda frame: 1 - frame, frames=[torch.rand(3, 32, 48)], name="negative")


def broken():
    def step(frame):
        raise ValueError("no more")

    return whet.StreamWorkload(open=lambda: step, frames=[torch.rand(3, 32, 48)], name="broken")
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "negatives.py").write_text(TARGET)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("negatives", None)


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    try:
        main(["stream", *arguments])
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_clip_becomes_a_video_and_the_report_counts_its_frames(here, capsys):
    code, out, err = run(capsys, "negatives.py:build", "--source", "synthetic:12", "--sink", "a.mp4", "--json")
    assert code == 0, err
    report = json.loads(out)
    assert report["counts"]["final"] == report["counts"]["written"] == 12
    assert (report["size"], report["verdict"], report["sink"]) == ([32, 48], None, "a.mp4")
    assert "frames: 0 of 12" in err.splitlines()  # where output is piped, it is not silent
    code, out, err = run(capsys, "negatives.py:build", "--source", "a.mp4", "--sink", "frames/")
    assert code == 0, err
    assert "12 final frames of 12 that arrived" in out
    assert len(list((here / "frames").glob("*.png"))) == 12


def test_a_model_that_fails_says_so_in_one_line_and_leaves_nothing(here, capsys):
    code, _, err = run(capsys, "negatives.py:broken", "--source", "synthetic:5", "--sink", "a.mp4")
    assert code == 2
    assert err.strip().splitlines()[-1] == "error: the stream's model failed: a ValueError: no more"
    assert [path.name for path in here.iterdir() if path.suffix == ".mp4" or path.name.startswith(".a")] == []


def test_a_drift_test_writes_its_page_and_its_exit_code(here, capsys):
    code, out, err = run(
        capsys, "negatives.py:build", "--drift", "128", "--source", "synthetic:64", "--out", "d", "--json"
    )
    assert code == 0, err
    assert json.loads(out)["verdict"] == "no drift"
    assert {path.name for path in (here / "d").iterdir()} == {"drift.html", "drift.json"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "neither a directory nor FILE.py:FUNCTION"),
        (["negatives.py:nothing"], "negatives.py"),
        (["negatives.py:build", "--source", "no.mp4"], "there is no source 'no.mp4'"),
        (["negatives.py:build", "--source", ""], "a source needs a name"),
        (["negatives.py:build", "--sink", ""], "an output needs a name"),
        (["negatives.py:build", "--sink", "a.avi"], "has no suffix of a video that can be written"),
        (["negatives.py:build", "--size", "0"], "write height and width as 256x512"),
        (["negatives.py:build", "--size", "99999"], "at most 16384"),
        (["negatives.py:build", "--budget", "soon"], "--budget 'soon'"),
        (["negatives.py:build", "--skip-still", "7"], "a still scene begins at a similarity"),
        (["negatives.py:build", "--steps", "2"], "takes no --steps"),
        (["negatives.py:build", "--guidance", "full:x"], "write KIND, KIND:WEIGHT"),
        (["negatives.py:build", "--out", "d"], "--out goes with --drift"),
        (["negatives.py:build", "--port", "1"], "go with --page"),
        (["negatives.py:build", "--drift", "600", "--sink", "a.mp4"], "--drift tests the output instead"),
        (["negatives.py:build", "--drift", "600", "--budget", "1ms"], "--drift tests the output instead"),
        (["negatives.py:build", "--drift", "12"], "at least 128 frames"),
        (["negatives.py:build", "--page", "--live"], "--page shows the answers in the browser"),
        (["negatives.py:build", "--seed", "99999999999999999999999"], "a seed is a whole number"),
    ],
)
def test_wrong_use_ends_with_one_line_and_2(here, capsys, arguments, said):
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert said in err and "Traceback" not in err
    assert sum(line.startswith("error:") for line in err.splitlines()) == 1


def test_the_source_is_not_overwritten_by_the_sink(here, capsys):
    assert run(capsys, "negatives.py:build", "--source", "synthetic:4", "--sink", "in/")[0] == 0
    before = {path.name: path.read_bytes() for path in (here / "in").iterdir()}
    code, _, err = run(capsys, "negatives.py:build", "--source", "in", "--sink", "in/", "--overwrite")
    assert code == 2 and "is the source itself" in err
    assert {path.name: path.read_bytes() for path in (here / "in").iterdir()} == before


@pytest.mark.parametrize(
    ("fit", "said"), [("crop", "is cut off"), ("pad", "black bars take"), ("stretch", "stretched by")]
)
def test_frames_of_another_aspect_are_said(here, capsys, fit, said):
    run(capsys, "negatives.py:build", "--source", "synthetic:3", "--sink", "a.mp4", "--size", "32x96")
    code, out, err = run(capsys, "negatives.py:build", "--source", "a.mp4", "--fit", fit, "--sink", f"{fit}/")
    assert code == 0, err
    assert "frames of 96 x 32 have another aspect than 48 x 32" in " ".join(out.split()) and said in out
    code, out, _ = run(capsys, "negatives.py:build", "--source", "a.mp4", "--size", "16x48", "--fit", fit)
    assert code == 0 and "another aspect" not in out


def test_an_unknown_fit_is_refused_before_any_work(here, capsys):
    code, _, err = run(capsys, "negatives.py:build", "--source", "absent.mp4", "--fit", "fill")
    assert code == 2 and "--fit is one of crop, pad, stretch; got 'fill'" in err


def test_a_damaged_video_ends_with_a_line_that_names_the_frame(here, capsys):
    run(capsys, "negatives.py:build", "--source", "synthetic:40", "--sink", "whole.mkv")
    data = (here / "whole.mkv").read_bytes()
    (here / "cut.mkv").write_bytes(data[: len(data) * 2 // 3])
    code, out, err = run(capsys, "negatives.py:build", "--source", "cut.mkv", "--sink", "out/", "--json")
    num = json.loads(out)["counts"]["written"]
    assert code == 2 and num == len(list((here / "out").glob("*.png"))) and 0 < num < 40
    assert f"cut off after frame {num - 1}" in err.strip().splitlines()[-1]
    assert json.loads(out)["error"].startswith("cut.mkv is")
