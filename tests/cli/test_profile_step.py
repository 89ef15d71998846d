"""`whet profile --step`, as its command calls it: the loop runs in a process of its own."""

import json
from pathlib import Path
from typing import Any

import pytest

from whet.cli.profile_step import run_step
from whet.errors import ModelError, OptionError, TargetError
from whet.profiling.bounds import Bound
from whet.profiling.step.report import StepReport
from whet.tuner.target_profile.training import profile_step

pytestmark = pytest.mark.usefixtures("forked")

OPTIONS = {"on_busy": "wait", "busy_wait": "2m"}
SCRIPT = """
import os, time
import torch
from torch import nn

def parts():
    model = nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), [(torch.randn(2, 4), torch.randn(2, 1))] * 50

def slow_loader():
    model, optimizer, batches = parts()
    def slowly():
        for batch in batches:
            time.sleep(0.005)
            yield batch
    return model, optimizer, list_of(slowly), nn.functional.mse_loss

class list_of:
    def __init__(self, generate): self.generate = generate
    def __iter__(self): return self.generate()

def raises():
    model, optimizer, batches = parts()
    for index, (x, y) in enumerate(batches):
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        if index == 20:
            raise OSError("the disk is full")

def needs(argument):
    pass

def dies():
    os.kill(os.getpid(), 9)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT, encoding="utf-8")
    return path


def test_the_phases_of_a_loop(
    script: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run_step(f"{script}:slow_loader", limit_s=300.0, **OPTIONS, as_json=True)
    shown = capsys.readouterr()
    report = json.loads(shown.out.splitlines()[-1])
    assert report["verdict"] == report["bound"] == "input-bound"
    assert 40 <= report["num_counted"] <= 100
    phases = {phase["name"]: phase for phase in report["phases"]}
    assert phases["data wait"]["ms"] >= 5
    assert phases["host to device"]["ms"] is None
    assert phases["host to device"]["absent"]
    lines = shown.err.splitlines()
    assert next(line for line in lines if line.strip()) == "INPUT-BOUND"
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("data wait") for line in lines)


def test_a_loop_that_raises_is_shown_in_part_and_is_an_error(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ModelError, match=r"OSError: the disk is full \(line 28 of train.py\).*partial"):
        run_step(f"{script}:raises", limit_s=300.0, **OPTIONS, as_json=True)
    shown = capsys.readouterr()
    report = json.loads(shown.out.splitlines()[-1])
    assert report["is_partial"]
    assert report["num_counted"] >= 10
    assert "PARTIAL" in shown.err


def test_a_target_that_cannot_be_had_is_one_clear_error(script: Path) -> None:
    with pytest.raises(TargetError, match="needs arguments \\(argument\\)"):
        profile_step(f"{script}:needs")
    with pytest.raises(ModelError, match="could not be watched to its end: the process was ended by SIGKILL"):
        profile_step(f"{script}:dies")
    with pytest.raises(OptionError, match="1 or more"):
        profile_step(f"{script}:parts", num_steps=0)


def test_the_function_raises_what_the_command_says_and_gives_what_was_seen(script: Path) -> None:
    given: list[StepReport] = []
    with pytest.raises(ModelError, match="the disk is full"):
        profile_step(f"{script}:raises", ended_early=given.append)
    (report,) = given
    assert report.is_partial
    assert report.num_counted >= 10


def test_ctrl_c_shows_what_is_known_so_far(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    given: dict[str, Any] = {}

    def interrupted(function: str, arguments: dict[str, Any], directory: Path, **limits: Any) -> None:
        given.update(arguments, **limits)
        report = StepReport(Bound.COMPUTE, Bound.COMPUTE, ("most of it is forward",), "", 9, 7, ())
        (directory / "partial.json").write_text(json.dumps(report.as_json()), encoding="utf-8")
        raise KeyboardInterrupt

    monkeypatch.setattr("whet.tuner.target_profile.profiled_process.run_isolated", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_step("train.py:train", limit_s=7.0, **OPTIONS, as_json=False)
    shown = capsys.readouterr().out
    assert "PARTIAL  stopped by Ctrl-C" in shown
    assert "Most of it is forward" in shown
    assert given["limit_s"] == 7.0
    assert given["time_limit_s"] > 7.0
    assert given["memory_limit_bytes"] > 0
