"""What every kind has, tried kind by kind: one search, one verdict, one report, resumed and shared in one way."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import script_process
import targets
import test_scripts
import test_training
from fake_kind import FakeKind
from fake_search import applicable
from written_unets import write_unet

from whet.comparison.run import Run
from whet.core.recipe import Recipe, Step
from whet.errors import ModelError, OptionError, OutputError, StudyError
from whet.measure.quiet import QuietWait
from whet.models.diffusion.unet import UNetConfig
from whet.scripts.injection.script_command import ScriptCommand
from whet.streamer.stream import StreamOptions
from whet.techniques import TABLE
from whet.techniques.proof.loss_proof import LossProof
from whet.techniques.training import TRAINING_TABLE
from whet.tuner import finals
from whet.tuner.asked import Asked
from whet.tuner.driver import run
from whet.tuner.goal import Goal
from whet.tuner.kind import Kind, OtherKind
from whet.tuner.kind_options import check_options
from whet.tuner.listener import Listener
from whet.tuner.model_kind import ModelKind
from whet.tuner.points import original_point
from whet.tuner.prepared_target import prepared
from whet.tuner.result import Result
from whet.tuner.scripts.kind import ScriptKind
from whet.tuner.streams.kind import StreamKind
from whet.tuner.training.kind import TrainingKind
from whet.tuner.tuning import tune

Make = Callable[[Asked], Kind]


@dataclass(frozen=True)
class Case:
    """A kind with a target, and the only technique that is tried on it; "" for whatever it has."""

    make: Make
    technique: str
    everything: frozenset[str]

    def tuned(self, out: Path, **asked: Any) -> Result:
        known = {"budget_s": 300.0, "out": str(out), "exclude": tuple(self.everything - {self.technique}), **asked}
        result = run(self.make(Asked(**known)), QuietWait("go-on"), Listener())
        assert isinstance(result, Result)
        return result


@pytest.fixture(params=["inference", "training", "script", "stream"])
def case(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short_children: None
) -> Iterator[Case]:
    """A kind whose processes are forks, and whose finals are two rounds."""
    monkeypatch.setattr(finals, "ROUNDS", 2)
    monkeypatch.setattr(finals, "MIN_ROUNDS", 2)
    script_process.use(monkeypatch)
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def model(asked: Asked) -> Kind:
        return ModelKind(asked, prepared(f"{targets.HERE}:conv"))

    def training(asked: Asked) -> Kind:
        (folder / "train.py").write_text(test_training.SCRIPT)
        return TrainingKind(asked, prepared(f"{folder / 'train.py'}:workload"))

    def script(asked: Asked) -> Kind:
        (folder / "train.py").write_text(test_scripts.TRAIN)
        return ScriptKind(asked, ScriptCommand.checked([sys.executable, "train.py"]), 8)

    def stream(asked: Asked) -> Kind:
        monkeypatch.setattr(
            "whet.tuner.streams.models.capture", lambda *args: []
        )  # its models' searches are ModelKind's
        monkeypatch.setattr("whet.tuner.streams.facts._threads", lambda: (1,))
        if not (folder / "unet").exists():
            write_unet(folder / "unet", UNetConfig(frame_size=16, grey_size=8, widths=(8, 8), embedding=16))
        return StreamKind(asked, "unet", "synthetic:20", StreamOptions(steps=2))

    of_models, of_trainings = frozenset(TABLE), frozenset(TRAINING_TABLE)
    yield {
        "inference": Case(model, "channels_last", of_models),
        "training": Case(training, "fused_optimizer", of_trainings),
        "script": Case(script, "fused_optimizer", of_trainings),
        "stream": Case(stream, "", frozenset()),
    }[request.param]


def test_each_kind_writes_the_same_files_with_one_page_and_goes_on_from_them(case: Case, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = case.tuned(out)
    assert result.verdict in ("gain", "no-gain", "inconclusive")
    assert not case.technique or {trial.label.partition("(")[0] for trial in result.trials} <= {case.technique}
    assert {"recipe.toml", "report.html", "result.json", "study.db"} <= {path.name for path in out.iterdir()}
    assert not (out / "trials").exists()
    assert result.kind in (out / "report.html").read_text() or result.kind == "inference"
    assert Recipe.read(out).kind == ("training" if result.is_of_training else result.kind)
    assert Result.model_validate_json((out / "result.json").read_text()).sentence == result.sentence
    assert {"examination", "trials", "finals"} <= result.time_s.keys()
    assert "--out" not in result.command and result.command.startswith("whet tune ")
    summary = json.loads(json.dumps(result.summary()))
    assert summary["report"] == str(out / "report.html")
    assert set(summary) == set(BARE.summary())
    again = case.tuned(out, resume=True)
    assert [(t.number, t.status) for t in again.trials] == [(t.number, t.status) for t in result.trials]
    with pytest.raises(OutputError, match="exists already; choose another --out, or go on with it by --resume"):
        case.tuned(out)


@pytest.mark.parametrize("case", ["inference", "training", "script"], indirect=True)
def test_each_kind_keeps_to_the_memory_that_is_allowed(case: Case, tmp_path: Path) -> None:
    shared = f"sqlite:///{tmp_path / 'shared.db'}"
    goal = Goal("memory", max_memory_bytes=2**31)
    result = case.tuned(tmp_path / "out", goal=goal, storage=shared)
    assert result.objective == "memory"
    assert not (tmp_path / "out" / "study.db").exists()
    for trial in result.trials:
        assert trial.peak_bytes or trial.status != "done"
    again = case.tuned(tmp_path / "again", goal=goal, storage=shared, resume=True)
    assert len(again.trials) == len(result.trials), "what another directory's search tried is not tried again"


BARE = Result(
    target="x",
    verdict="no-gain",
    sentence="",
    quality_name="",
    baseline=original_point([Run(seconds=1.0)], 1.0),
    best=original_point([Run(seconds=1.0)], 1.0),
)


FEW = [applicable("bf16", "precision", bounds=[4.0]), applicable("openvino", "backend", "precision", bounds=[9.0])]


def tuned(kind: Kind) -> Result | OtherKind:
    return run(kind, QuietWait("go-on"), Listener())


def test_the_driver_searches_compares_and_keeps_the_best(tmp_path: Path) -> None:
    kind = FakeKind(asked=Asked(Goal(), out=str(tmp_path / "out")), applicable=FEW)
    result = tuned(kind)
    assert isinstance(result, Result)
    assert (result.verdict, result.target, result.out) == ("gain", "fake", str(tmp_path / "out"))
    assert result.best.steps == (Step(technique="openvino"),)
    assert (tmp_path / "out" / "report.html").read_text() == result.sentence
    assert len(kind.attempted) == len(set(kind.attempted)) == len(result.trials)
    again = FakeKind(asked=Asked(Goal(), out=str(tmp_path / "out"), resume=True), applicable=FEW)
    more = tuned(again)
    assert isinstance(more, Result)
    assert not set(again.attempted) & set(kind.attempted), "no recipe is tried twice"


def test_what_owes_a_proof_is_proved_best_first_until_one_is_known(tmp_path: Path) -> None:
    worse = LossProof(is_same=False, drop=0.1, most=0.1, grown=0.1, allowed=0.0025)
    owed = {"openvino": worse}
    kind = FakeKind(asked=Asked(Goal(), out=str(tmp_path / "out")), owed=owed, applicable=FEW)
    result = tuned(kind)
    assert isinstance(result, Result)
    assert kind.proved == ["openvino"], "the next one owes nothing"
    assert (result.verdict, result.best.label) == ("gain", "bf16")
    assert "openvino is left out: worse held-out loss" in result.sentence


def test_a_target_of_another_kind_is_handed_back_before_anything_is_written(tmp_path: Path) -> None:
    class Other(FakeKind):
        def examine(self) -> Any:
            return OtherKind("training")

    assert tuned(Other(asked=Asked(Goal(), out=str(tmp_path / "out")), applicable=FEW)) == OtherKind("training")
    assert not (tmp_path / "out").exists()


def test_an_original_that_cannot_be_measured_leaves_nothing_behind(tmp_path: Path) -> None:
    class Broken(FakeKind):
        def measure_original(self) -> None:
            raise ModelError("the original cannot be measured")

    with pytest.raises(ModelError):
        tuned(Broken(asked=Asked(Goal(), out=str(tmp_path / "out")), applicable=FEW))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"fingerprint": "another"}, "begun on another machine"),
        ({"weights": "others"}, "weights are not those that this search was begun with"),
    ],
)
def test_a_search_goes_on_with_what_it_began_with_alone(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    tuned(FakeKind(asked=Asked(Goal(), out=str(tmp_path / "out")), applicable=FEW))
    again = FakeKind(asked=Asked(Goal(), out=str(tmp_path / "out"), resume=True), applicable=FEW, **changed)
    with pytest.raises(StudyError, match=said):
        tuned(again)


def test_a_function_that_describes_a_training_is_tuned_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short_children: None
) -> None:
    """Only building it tells."""
    (tmp_path / "train.py").write_text(test_training.SCRIPT)
    asked: list[str] = []

    def begun(kind: Kind, patience: QuietWait, listener: Listener) -> Result | OtherKind:
        asked.append(kind.word)
        return run(kind, patience, listener) if kind.word == "inference" else BARE

    monkeypatch.setattr("whet.tuner.tuning.run", begun)
    with contextlib.suppress(OptionError):
        tune(f"{tmp_path / 'train.py'}:workload", out=tmp_path / "out", budget_s=120, on_busy="go-on")
    assert asked == ["inference", "training"]


@pytest.mark.parametrize(
    ("option", "kinds", "said"),
    [
        ("--resume", ["script"], ""),
        ("--objective memory", ["script"], ""),
        ("--max-memory", ["training"], ""),
        ("--steps", ["inference", "training", "stream"], ""),
        ("--allow-batch", ["inference"], "--allow-batch goes with a training, and x is a model; whet bench measures"),
        ("--objective size", ["training"], "goes with a model, and x is a training; its objectives are throughput"),
        ("--resume", ["stream"], ""),
        ("--max-memory", ["stream"], "--max-memory goes with a model, a training or a script, and x is a stream; a"),
        ("--frame-budget", ["script"], "--frame-budget goes with a stream, and x is a script; leave it out"),
        ("--exclude", ["stream"], ""),
    ],
)
def test_options_without_a_meaning_are_refused_by_one_rule(option: str, kinds: list[Any], said: str) -> None:
    if not said:
        check_options([option], "x", kinds)
        return
    with pytest.raises(OptionError) as refused:
        check_options([option], "x", kinds)
    assert said in str(refused.value)
