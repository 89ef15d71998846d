"""`whet profile TARGET`: its options in this process, and the whole of it in real ones."""

import contextlib
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from whet import cli
from whet.cli import profile_target
from whet.errors import InputsError, ModelError, OptionError, OutputError
from whet.measure.isolate import Failure, FailureKind, Outcome
from whet.profiling.bounds import Bound
from whet.profiling.model.report import Report, as_json
from whet.profiling.model.verdict import ProfileVerdict
from whet.tuner.target_profile import model, profiled_process

TARGETS = """
import os, signal
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, after=None, ends=None):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8))
        self.calls, self.after, self.ends = 0, after, ends

    def forward(self, x):
        self.calls += 1
        if self.after is not None and self.calls > self.after:
            self.ends()
        return self.body(x)

def fine():
    return Net(), torch.randn(16, 64)

def kill():
    os.kill(os.getpid(), signal.SIGKILL)

def killed():
    return Net(3, kill), torch.randn(16, 64)

def stop():
    raise RuntimeError("the wheel came off")

def raises():
    return Net(5, stop), torch.randn(16, 64)
"""


@pytest.fixture
def targets(tmp_path: Path) -> str:
    path = tmp_path / "profile_targets.py"
    path.write_text(TARGETS)
    return str(path)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "80"}
    return subprocess.run(
        [sys.executable, "-m", "whet", "profile", *arguments], capture_output=True, text=True, env=environment
    )


def test_a_target_from_end_to_end(targets: str, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    done = run(f"{targets}:fine", "--json", "--depth", "2", "--out", str(out))
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout.splitlines()[-1])
    assert data["target"] == f"{targets}:fine" and data["out"] == str(out)
    assert data["total_flops"] == 2 * 16 * (64 * 128 + 128 * 8)
    assert data["layers_s"] == pytest.approx(data["call_s"], rel=0.5)
    assert data["verdict"]["bound"] and data["verdict"]["text"]
    assert max(section["depth"] for section in data["sections"]) == 2
    assert data["leaks"] == []
    assert max(map(len, done.stderr.splitlines())) <= 80
    assert sorted(p.name for p in out.iterdir()) == ["profile.json", "trace.json.gz"]
    assert json.loads((out / "profile.json").read_text())["total_flops"] == data["total_flops"]
    assert json.loads(gzip.decompress((out / "trace.json.gz").read_bytes()))["traceEvents"]


@pytest.mark.usefixtures("short_children")
def test_a_target_that_raises_or_is_killed_is_one_message(
    targets: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["profile", f"{targets}:raises", "--out", str(tmp_path / "part")])
    assert left.value.code == 2
    raised = capfd.readouterr()
    assert "PARTIAL" in raised.out and "one call" in raised.out
    assert raised.err.count("the wheel came off") == 1 and "Traceback" not in raised.err
    assert json.loads((tmp_path / "part" / "profile.json").read_text())["partial"]
    with pytest.raises(SystemExit) as left:
        cli.main(["profile", f"{targets}:killed", "--out", str(tmp_path / "none")])
    assert left.value.code == 2
    said = capfd.readouterr().err
    assert said.splitlines()[-1].startswith("error: ") and "SIGKILL" in said
    assert not (tmp_path / "none").exists()


PART = Report(name="x", verdict=ProfileVerdict(Bound.COMPUTE, ("It computes.",), 0.5), wall_s=1.0)


def outcome_of(monkeypatch: pytest.MonkeyPatch, failure: Failure | None, *, noted: bool) -> None:
    """What the child leaves behind."""

    def isolated(function: str, arguments: Any, directory: Path, **limits: Any) -> Outcome:
        assert function is model.look
        assert limits["time_limit_s"] == 300.0 and limits["memory_limit_bytes"] > 10**8
        if noted:
            (directory / "partial.json").write_text(json.dumps(as_json(PART)))
        return Outcome(as_json(PART) if failure is None else None, failure, 1.0, 0)

    monkeypatch.setattr(profiled_process, "run_isolated", isolated)


def call(**more: Any) -> None:
    profile_target.run_target(
        "digits-cnn",
        **{
            "out": None,
            "depth": 3,
            "rows": 5,
            "limit_s": 300.0,
            "on_busy": "wait",
            "busy_wait": "2m",
            "as_json": False,
            **more,
        },
    )


@pytest.mark.parametrize("noted", [False, True])
def test_a_child_that_ends_early_leaves_what_it_noted(
    noted: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    outcome_of(monkeypatch, Failure(FailureKind.MEMORY, "used more memory than its limit of 3 MiB"), noted=noted)
    with pytest.raises(ModelError, match="digits-cnn could not be profiled to its end: used more memory"):
        call(as_json=True, out=tmp_path / "out")
    printed = capsys.readouterr().out
    assert bool(printed) == noted == (tmp_path / "out").exists()
    if noted:
        data = json.loads(printed)
        assert data["partial"].startswith("used more memory") and data["verdict"]["bound"] == "compute-bound"


def test_errors_of_the_user_keep_their_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome_of(monkeypatch, Failure(FailureKind.USER, "they do not fit", "InputsError"), noted=False)
    with pytest.raises(InputsError, match=r"^they do not fit$"):
        call()


def test_an_output_that_cannot_be_is_refused_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(profiled_process, "run_isolated", None)
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path, tmp_path / "file"):
        with pytest.raises(OutputError):
            call(out=out)
    assert (tmp_path / "file").read_text() == "mine"


def test_ctrl_c_shows_what_is_known(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def isolated(function: str, arguments: Any, directory: Path, **limits: Any) -> Outcome:
        (directory / "partial.json").write_text(json.dumps(as_json(PART)))
        raise KeyboardInterrupt

    monkeypatch.setattr(profiled_process, "run_isolated", isolated)
    with pytest.raises(KeyboardInterrupt):
        call()
    assert "It computes." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a TARGET"),
        (["docs-gpt", "b"], "one target"),
        (["docs-gpt", "--depth", "0"], "--depth 0 and --rows 12: both must be 1"),
        (["docs-gpt", "--limit", "soon"], "write a duration"),
        (["--trace", "x.json", "--out", "y"], "--trace reads"),
    ],
)
def test_wrong_use_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["profile", *arguments])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert any(part in line for part in message.split("|"))


def test_traces_and_steps_go_to_their_own_commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    called: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        "whet.cli.profile._run", lambda module, function, *args, **kwargs: called.append((module, function, *args))
    )
    monkeypatch.setattr(model, "profile_nvtx", lambda target: called.append(("nvtx", target)))
    name = "digits-cnn"
    for path in ("a", "b"):
        (tmp_path / path).touch()
    monkeypatch.chdir(tmp_path)
    for arguments in (
        ["--trace", "a", "--trace", "b"],
        ["--trace", "a", "b"],
        [name, "--step"],
        [name, "--nvtx"],
        [name],
    ):
        with pytest.raises(SystemExit) as ended:
            cli.main(["profile", *arguments])
        assert ended.value.code == 0
    assert called == [
        ("profile_trace", "run_trace", [Path("a"), Path("b")]),
        ("profile_trace", "run_trace", [Path("a"), Path("b")]),
        ("profile_step", "run_step", name),
        ("nvtx", name),
        ("profile_target", "run_target", name),
    ]


def test_nvtx_needs_a_gpu(targets: str) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(SystemExit) as ended:
        cli.main(["profile", f"{targets}:fine", "--nvtx"])
    assert ended.value.code == 2
    assert issubclass(OptionError, Exception)


def test_an_out_that_cannot_be_written_is_told_before_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["profile", "digits-cnn", "--out", "/proc/profile"])
    assert ended.value.code == 2
    assert "/proc/profile cannot be written" in capsys.readouterr().err


TRAINING = """
import torch
from whet import TrainingWorkload

def train():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
    data = [(torch.randn(16, 64), torch.randint(0, 8, (16,))) for _ in range(4)]
    return TrainingWorkload(
        model=model,
        loss=lambda model, batch: torch.nn.functional.cross_entropy(model(batch[0]), batch[1]),
        optimizer=lambda parameters: torch.optim.AdamW(parameters),
        batches=data,
    )
"""


@pytest.mark.usefixtures("short_children")
def test_a_training_run_has_its_phases_and_both_passes_of_its_layers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function of the user's is found to be a training run; nothing says so before."""
    monkeypatch.setenv("COLUMNS", "80")
    path = tmp_path / "train.py"
    path.write_text(TRAINING)
    out = tmp_path / "out"
    with contextlib.suppress(SystemExit):
        cli.main(["profile", f"{path}:train", "--on-busy", "go-on", "--json", "--out", str(out)])
    shown = capsys.readouterr()
    data = json.loads(shown.out.splitlines()[-1])
    assert data["kind"] == "training"
    layers = {layer["name"]: layer for layer in data["layers"]["layers"]}
    assert layers["0"]["flops"] == 2 * 16 * 64 * 128
    assert layers["0"]["backward_flops"] == layers["0"]["flops"], "no gradient of the input is needed"
    assert layers["2"]["backward_flops"] == 2 * layers["2"]["flops"]
    assert data["memory"]["optimizer_bytes"] == 2 * data["memory"]["parameter_bytes"] + 4 * 4
    assert "left out: the optimiser" in " ".join(shown.err.split())
    assert "backward" in shown.err
    assert max(map(len, shown.err.splitlines())) <= 80
    assert json.loads((out / "profile.json").read_text())["kind"] == "training"
