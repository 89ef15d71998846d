"""whet.tune from end to end, in real processes, on models that take milliseconds."""

import contextlib
import inspect
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import targets
import torch
from fake_search import facts, techniques

import whet
from processors import NEEDS_BFLOAT16
from whet.cli import main
from whet.core.signature import read_signature
from whet.errors import InputsError, ModelError, OptionError, OutputError, StudyError, TargetError
from whet.measure.machine import describe
from whet.techniques import TABLE
from whet.tuner.apply import apply_recipe
from whet.tuner.asked import Asked
from whet.tuner.budget import Runner
from whet.tuner.command import BUDGET_S, command_line, without_password
from whet.tuner.listener import Listener
from whet.tuner.model_kind import ModelKind
from whet.tuner.opened_study import open_study
from whet.tuner.prepared_target import Prepared
from whet.tuner.processes import forking
from whet.tuner.records import TrialRecord
from whet.tuner.tuning import tune

ONLY_BF16 = [name for name in TABLE if name != "bf16"]


def examined(asked: Asked, **known: object) -> ModelKind:
    """A model as it is known after its examination."""
    target = Prepared("x", "x", Path())
    kind = ModelKind(asked, contextlib.nullcontext(target))
    kind._prepared, kind.facts = target, facts(**known)
    return kind


@pytest.fixture(scope="module")
def shared_runner() -> Iterator[Runner]:
    with forking(None) as run:
        yield run


@pytest.fixture
def one_server(monkeypatch: pytest.MonkeyPatch, shared_runner: Runner) -> None:
    """The trials of several calls of tune are forks of the same process."""
    monkeypatch.setattr(
        "whet.tuner.model_kind.forking", lambda memory_limit_bytes: contextlib.nullcontext(shared_runner)
    )


@NEEDS_BFLOAT16
def test_a_model_on_which_nothing_helps_gives_no_gain_and_the_original(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "whet", "tune", f"{targets.HERE}:tiny", "--budget", "5m"]
    command += ["--exclude", ",".join(ONLY_BF16), "--out", str(out)]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["verdict"] == "no-gain"
    assert summary["best"]["latency_ms"] == summary["baseline"]["latency_ms"] > 0
    for key in ("size_bytes_baseline", "size_bytes_best", "peak_bytes_baseline", "peak_bytes_best", "share_of_limit"):
        assert summary[key] > 0, key
    assert {"compile_only", "quality_baseline", "quality_best", "recipe"} <= set(summary)
    assert {path.name for path in out.iterdir()} >= {"recipe.toml", "report.html", "result.json", "model"}
    assert whet.Recipe.read(out / "recipe.toml").steps == ()
    result = json.loads((out / "result.json").read_text())
    assert result["finalists"] == []  # bf16 takes three times as long
    assert "bf16 comes nearest, at 0." in result["sentence"]
    model, x = targets.tiny()
    torch.testing.assert_close(whet.load(out / "model")(x), model(x))


@pytest.mark.usefixtures("short_children")
def test_a_model_that_branches_on_values_is_told_why_nothing_is_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as left:
        main(["tune", f"{targets.HERE}:branching", "--budget", "60s", "--out", str(out), "--exclude", "torch_compile"])
    assert left.value.code == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "refused: every technique that makes a graph of the model: torch.export cannot trace the model" in told
    result = json.loads((out / "result.json").read_text())
    assert result["verdict"] == "no-gain"
    assert "No gain: no technique was tried: torch.export cannot trace" in result["sentence"]
    reasons = {refused["technique"]: refused["reason"] for refused in result["refused"]}
    emulated = {name for name, reason in reasons.items() if "would emulate it" in reason}  # known before any tracing
    assert emulated <= {"bf16", "fp16", "autocast"}
    for name in set(TABLE) - {"torch_compile"} - emulated:
        assert "depends on the values of its tensors" in reasons[name]
    assert result["trials"] == []
    assert not (out / "model").exists()


@NEEDS_BFLOAT16
@pytest.mark.usefixtures("short_children")
def test_tuning_goes_on_past_a_trial_that_is_killed_and_one_that_breaks_quality(tmp_path: Path) -> None:
    heard: list[TrialRecord] = []

    class Ear(Listener):
        def tried(self, record: TrialRecord) -> None:
            heard.append(record)

    exclude = [name for name in TABLE if name not in ("bf16", "fuse_conv_bn")]
    result = tune(f"{targets.HERE}:faulty", out=tmp_path / "out", budget_s=300, exclude=exclude, listener=Ear())
    trials = {trial.label: trial for trial in result.trials}
    killed, inexact = trials["bf16"], trials["fuse_conv_bn"]
    assert killed.status == "failed"
    assert "SIGKILL" in killed.reason
    assert (inexact.status, inexact.quality) == ("rejected", 0.0)
    assert "exactness drops by 100" in inexact.reason
    assert [record.label for record in heard] == list(trials)
    assert result.verdict == "no-gain"
    assert result.best.steps == ()


def test_a_trial_over_its_memory_limit_is_recorded(tmp_path: Path) -> None:
    with pytest.raises(whet.WhetError, match="memory"):
        tune(f"{targets.HERE}:conv", out=tmp_path / "out", budget_s=300, memory_limit_bytes=50 * 2**20)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("one_server")
@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        ("nothing", TargetError, "int"),
        ("mismatch", InputsError, "9"),
        ("raises", ModelError, "the wheel came off"),
        ("nan", ModelError, "NaN"),
        ("random", ModelError, "not deterministic"),
        ("absent", TargetError, "absent"),
    ],
)
def test_a_bad_target_is_named_and_nothing_is_written(
    tmp_path: Path, function: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        tune(f"{targets.HERE}:{function}", out=tmp_path / "out", budget_s=300)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("one_server")
def test_a_model_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whet.tuner.model_kind._EXAMINATION_LIMIT_S", 3.0)
    with pytest.raises(whet.WhetError, match="longer than its limit of 3 s"):
        tune(f"{targets.HERE}:hangs", out=tmp_path / "out", budget_s=300)


def test_options_out_of_range_are_named(tmp_path: Path) -> None:
    model, inputs = targets.conv()
    for wrong in ({"objective": "beauty"}, {"max_drop": 1.5}, {"budget_s": 0}, {"exclude": ["magic"]}):
        with pytest.raises(OptionError):
            tune(model, inputs, out=tmp_path / "out", **wrong)  # type: ignore[arg-type]
    with pytest.raises(TargetError, match="inputs"):
        tune(model)


def test_too_little_memory_for_torch_alone_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"nothing fits into 1\.00 kB: a process that .* torch holds \d+ MB"):
        tune("digits-cnn", out=tmp_path / "out", max_memory_bytes=1000)
    assert not (tmp_path / "out").exists()


def test_a_refused_model_in_memory_leaves_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    model, inputs = targets.conv()
    with pytest.raises(StudyError, match="give one of them"):
        tune(model, inputs, resume=True)
    with pytest.raises(TargetError, match="needs inputs"):
        tune(model)
    assert not list(tmp_path.iterdir())


def test_an_output_directory_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(OutputError, match="exists already"):
        tune("digits-cnn", out=tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["precious.txt"]


THIS = describe()
OTHER = read_signature([torch.ones(2, 2)], torch.ones(1))


@pytest.mark.parametrize(
    ("change", "exclude", "message"),
    [
        (
            {"fingerprint": "g", "machine": replace(THIS, cores=THIS.cores + 6)},
            [],
            rf"begun on another machine \(cores: {THIS.cores} there, {THIS.cores + 6} here\); times",
        ),
        ({"signature": OTHER}, [], "the target has changed"),
        ({"weights": "v"}, [], "weights are not those that this search was begun with"),
        ({}, ["bf16"], "begun with bf16 to be tried"),
    ],
)
def test_a_search_goes_on_only_as_it_was_begun(
    tmp_path: Path, change: dict[str, object], exclude: list[str], message: str
) -> None:
    found = [entry for entry in techniques() if entry.technique == "bf16"]
    open_study(examined(Asked(), applicable=found), tmp_path)
    open_study(examined(Asked(resume=True, exclude=("fp16",)), applicable=found), tmp_path)  # it does not apply anyway
    with pytest.raises(StudyError, match=message):
        open_study(examined(Asked(resume=True, exclude=tuple(exclude)), applicable=found, **change), tmp_path)


def test_a_search_can_be_typed_again() -> None:
    line = command_line(
        "hf:my model?batch=8&seq=256", objective="size", max_drop=0.02, max_memory_bytes=10**9, budget_s=90.0,
        storage="sqlite:///x.db", exclude=["bf16", "fp16"], out=Path("o"), resume=True,
    )  # fmt: skip
    words = (
        "whet|tune|hf:my model?batch=8&seq=256|--objective|size|--max-drop|0.02|--budget|90s|--max-memory|1000000000"
    )
    words += "|--storage|sqlite:///x.db|--exclude|bf16,fp16|--out|o|--resume"
    assert shlex.split(line) == words.split("|")


def test_options_at_their_default_are_not_repeated() -> None:
    limits = {"objective": "latency", "max_drop": None, "max_memory_bytes": None, "budget_s": 300.0, "storage": None}
    assert command_line("digits-cnn", **limits, exclude=[], resume=True) == "whet tune digits-cnn --resume"
    busy = command_line("digits-cnn", **limits, exclude=[], on_busy="go-on", busy_wait_s=600.0, as_json=True)
    assert busy == "whet tune digits-cnn --on-busy go-on --busy-wait 600s --json"
    script = command_line(["python", "train.py"], **{**limits, "max_drop": 0.01}, exclude=[], more={"--steps": "9"})
    assert script == "whet tune --max-drop 0.01 --steps 9 -- python train.py", "a model's default is no script's"
    assert inspect.signature(tune).parameters["budget_s"].default == BUDGET_S


def test_a_file_in_the_place_of_a_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError, match="is a file"):
        tune("digits-cnn", out=tmp_path / "file" / "out")
    with pytest.raises(OutputError, match="is a file"):
        apply_recipe(whet.Recipe(steps=[]), "digits-cnn", tmp_path / "file" / "out")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_storage_is_shown_without_what_is_secret() -> None:
    assert without_password("postgresql+psycopg2://me:secret@host/db") == "postgresql+psycopg2://me:***@host/db"
    assert without_password("postgresql://host/db?user=me&password=secret") == "postgresql://host/db"
    assert without_password("sqlite:///x.db") == "sqlite:///x.db"
    assert without_password("no URL") == "no URL"


@pytest.mark.usefixtures("one_server")
def test_a_damaged_study_is_named_on_resume(tmp_path: Path) -> None:
    (tmp_path / "study.db").write_bytes(b"no database" * 1000)
    with pytest.raises(StudyError, match="cannot be used"):
        tune(f"{targets.HERE}:conv", out=tmp_path, budget_s=300, resume=True)


def test_models_of_one_name_have_studies_of_their_own_in_a_shared_storage(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/shared.db"
    for weights in ("a", "b"):
        open_study(examined(Asked(storage=storage), weights=weights), tmp_path)
    open_study(examined(Asked(storage=storage, resume=True), weights="a"), tmp_path)
    with pytest.raises(StudyError, match="holds no search for this target as it is now"):
        open_study(examined(Asked(storage=storage, resume=True), weights="c"), tmp_path)


def test_a_directory_of_other_things_is_not_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(OutputError, match="holds other things than a search"):
        tune("digits-cnn", out=tmp_path, resume=True, storage=f"sqlite:///{tmp_path}/shared.db")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("name", ["x" * 300, f"{'x' * 300}/below"])
def test_a_name_too_long_for_the_file_system_is_said(tmp_path: Path, name: str) -> None:
    with pytest.raises(OutputError, match=r"cannot be used: File name too long; choose another --out"):
        tune("digits-cnn", out=tmp_path / name)


def test_no_study_to_resume_is_said_and_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="no search to go on with"):
        tune("digits-cnn", out=tmp_path / "out", resume=True)
    assert not (tmp_path / "out").exists()


def test_a_busy_machine_gives_no_verdict_and_says_why(tmp_path: Path) -> None:
    """Another process holds a core and a half: no factor is shown, exit code 3, and the original stays."""
    out = tmp_path / "out"
    command = [sys.executable, "-m", "whet", "tune", f"{targets.HERE}:tiny", "--budget", "90s", "--out", str(out)]
    environment = {**os.environ, "WHET_PRETENDED_LOAD": "1.5", "COLUMNS": "80"}
    done = subprocess.run([*command, "--busy-wait", "0.2s"], capture_output=True, text=True, env=environment)
    said = " ".join(done.stdout.split())
    assert done.returncode == 3, done.stderr
    assert "The machine is busy: other processes used 1.5 of" in said
    assert "Inconclusive: the machine was busy, and the original stays" in said, said
    assert "The machine stayed busy for" in said, said
    assert "For a verdict, close other programs and go on from here: whet tune" in said
    assert said.endswith("--resume")
    result = json.loads((out / "result.json").read_text())
    assert (result["verdict"], result["best"]["steps"], result["trials"]) == ("inconclusive", [], [])
    assert "other processes used 1.5 of" in result["busy"]
    assert "GAIN" not in done.stdout
    model, x = targets.tiny()
    torch.testing.assert_close(whet.load(out / "model")(x), model(x))
    quiet = {**environment, "WHET_PRETENDED_LOAD": "0"}
    again = [*command, "--resume", "--exclude", ",".join(ONLY_BF16), "--json"]
    done = subprocess.run(again, capture_output=True, text=True, env=quiet)
    assert done.returncode == 2  # the search was begun with the others to be tried
    assert "to be tried" in done.stderr


@pytest.mark.parametrize(
    ("storage", "message"),
    [
        ("sqlite:////proc/shared.db", r"/proc/shared.db cannot be used \(.*must be writable"),
        ("sqlite:///nowhere/shared.db", r"nowhere/shared.db cannot be used \(.*there is no directory"),
        ("nonsense", "cannot be used"),
    ],
)
def test_a_storage_that_cannot_be_used_is_told_before_the_model_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, storage: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StudyError, match=message):
        tune(f"{targets.HERE}:absent", out=tmp_path / "out", storage=storage)
    assert list(tmp_path.iterdir()) == []


def test_an_out_that_cannot_be_written_is_told_before_the_model_is_built() -> None:
    with pytest.raises(OutputError, match=r"/proc/out cannot be written"):
        tune(f"{targets.HERE}:absent", out="/proc/out")
