"""whet tune -- python train.py: the search, the proof and the verdict, on scripts that nobody has changed."""

import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import fake_kind
import pytest
import script_process
from script_outcomes import AUTOCAST, FUSED, SHARES, outcome

from whet.cli import main
from whet.core.recipe import Recipe, Step
from whet.errors import ModelError, OptionError, StudyError, TargetError
from whet.measure.quiet import QuietWait
from whet.scripts.injection.command import ScriptCommand, ScriptOutcome
from whet.scripts.injection.messages import ScriptRecord
from whet.techniques.costs.memory import StepMemory
from whet.techniques.proof.loss_proof import LossProof
from whet.techniques.proof.loss_proof import judge as judge_pairs
from whet.techniques.proof.sensitivity import BFLOAT16, SUMS
from whet.techniques.training import TRAINING_TABLE
from whet.techniques.training_technique import Exactness
from whet.tuner import finals
from whet.tuner.asked import Asked
from whet.tuner.budget import Budget
from whet.tuner.driver import run
from whet.tuner.goal import Goal
from whet.tuner.listener import Listener
from whet.tuner.records import TrialRecord
from whet.tuner.result import MeasuredVariant, Result
from whet.tuner.scripts.examination import Examined, examine
from whet.tuner.scripts.facts import ScriptFacts, facts_of
from whet.tuner.scripts.kind import ScriptKind
from whet.tuner.scripts.losses import loss_pair
from whet.tuner.scripts.proof import Original, judge
from whet.tuner.scripts.runs import ScriptRuns, timed_run
from whet.tuner.scripts.tune_script import tune_script
from whet.tuner.search import SearchTime, search_space
from whet.tuner.study import Study, default_storage

TRAIN = """
import torch

torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x, y = torch.randn(64, 8), torch.randint(0, 4, (64,))
for step in range(40):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    open("log.txt", "a").write("step")
"""


@pytest.fixture
def scripts(tmp_path: Path, children_server: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ScriptCommand]:
    """Write a script into the user's directory, and return its command. Its runs are forks."""
    script_process.use(monkeypatch)
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")

    def made(source: str) -> ScriptCommand:
        Path("train.py").write_text(source)
        return ScriptCommand.checked([sys.executable, "train.py"])

    return made


def runs_of(command: ScriptCommand, tmp_path: Path) -> ScriptRuns:
    return ScriptRuns(command, tmp_path / "scratch", num_steps=8, limit_s=60)


def kind_of(command: ScriptCommand, out: Path, num_steps: int = 8, **asked: Any) -> ScriptKind:
    known = {"goal": Goal("throughput"), "budget_s": 120.0, **asked}
    return ScriptKind(Asked(out=str(out), **known), command, num_steps)


def test_a_script_is_tuned_and_nothing_of_the_users_changes(
    scripts: Callable[[str], ScriptCommand], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finals, "ROUNDS", 2)
    monkeypatch.setattr(finals, "MIN_ROUNDS", 2)
    others = tuple(TRAINING_TABLE.keys() - {"fused_optimizer"})
    out, command = tmp_path / "out", scripts(TRAIN)
    result = run(kind_of(command, out, exclude=others), QuietWait("go-on"), Listener())
    assert isinstance(result, Result)
    assert [(trial.status, trial.label) for trial in result.trials] in ([("done", "fused_optimizer(kind=fused)")], [])
    assert result.kind == "script" and result.baseline.throughput_per_s > 0
    for trial in result.trials:
        assert trial.training is not None and trial.training.gradients is not None
        assert "against the script's own" in trial.training.gradients.words
    assert Recipe.read(out).kind == "training"
    assert json.loads((out / "result.json").read_text())["verdict"] == result.verdict
    page = (out / "report.html").read_text()
    assert "Where the time of the original’s step goes" in page and "train.py" in page
    assert [path.name for path in Path.cwd().iterdir()] == ["train.py"]
    assert Path("train.py").read_text() == TRAIN
    Path("train.py").write_text(TRAIN.replace("1e-2", "2e-2"))
    with pytest.raises(StudyError, match="holds no search for this target"):
        run(kind_of(command, out, exclude=others, resume=True), QuietWait("go-on"), Listener())


@pytest.mark.slow
def test_a_script_is_tuned_in_whole_launches(
    scripts: Callable[[str], ScriptCommand], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finals, "ROUNDS", 2)
    monkeypatch.setattr(finals, "MIN_ROUNDS", 2)
    wrapped = "torch.distributed.init_process_group('gloo')\nmodel = torch.nn.parallel.DistributedDataParallel(model)\n"
    scripts(TRAIN.replace("optimizer = ", f"{wrapped}optimizer = "))
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    command = ScriptCommand.checked([torchrun, "--standalone", "--nproc-per-node", "2", "train.py"])
    others = tuple(TRAINING_TABLE.keys() - {"fused_optimizer"})
    result = run(kind_of(command, tmp_path / "out", exclude=others), QuietWait("go-on"), Listener())
    assert isinstance(result, Result)
    [trial] = result.trials
    assert (trial.status, trial.label) == ("done", "fused_optimizer(kind=fused)")
    assert trial.training is not None and trial.training.updates is not None and trial.training.updates.is_same
    assert result.target.endswith("torchrun --standalone --nproc-per-node 2 train.py")
    assert [path.name for path in Path.cwd().iterdir()] == ["train.py"]


def test_a_script_that_is_not_reproducible_is_named(scripts: Callable[[str], ScriptCommand], tmp_path: Path) -> None:
    command = scripts(TRAIN.replace("manual_seed(7)", "seed()"))
    with pytest.raises(
        ModelError, match=r"train.py does not train the same twice: step 1 has the losses .* Seed every"
    ):
        examine(runs_of(command, tmp_path), "train.py", Budget(60.0))


def test_a_script_whose_loss_is_not_finite_is_named(scripts: Callable[[str], ScriptCommand], tmp_path: Path) -> None:
    command = scripts(TRAIN.replace("model(x), y)", "model(x) / (step != 3), y)"))
    with pytest.raises(ModelError, match=r"the loss of step 4 of train.py as it is is (nan|inf); mend that first"):
        examine(runs_of(command, tmp_path), "train.py", Budget(60.0))


def test_an_examination_that_does_not_fit_the_budget_is_said(
    scripts: Callable[[str], ScriptCommand], tmp_path: Path
) -> None:
    runs, started = runs_of(scripts(TRAIN), tmp_path), time.monotonic()
    with pytest.raises(OptionError, match=r"to examine train.py takes longer than a budget of 5 s: a run takes"):
        examine(runs, "train.py", Budget(5.0, clock=lambda: 1000 * (time.monotonic() - started)))
    assert not (tmp_path / "scratch" / "run-1").exists()


def test_too_few_steps_are_named(scripts: Callable[[str], ScriptCommand], tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="makes 5 optimiser steps; give it arguments with which it makes 8 or more"):
        examine(runs_of(scripts(TRAIN.replace("range(40)", "range(5)")), tmp_path), "train.py", Budget(60.0))
    with pytest.raises(OptionError, match="--steps 4 are too few"):
        tune_script(list(scripts(TRAIN).words), num_steps=4, out=tmp_path / "out")


@pytest.mark.parametrize(
    ("exactness", "made", "words"),
    [
        (Exactness.EXACT, {"noise": 1e-6}, ""),
        (Exactness.EXACT, {"noise": 1e-3}, "other gradients"),
        (Exactness.EXACT, {"scale": 2.0}, "other gradients"),
        (Exactness.ROUNDED, {"noise": 1e-3}, ""),
        (Exactness.ROUNDED, {"scale": 0.9}, "other gradients"),
        (Exactness.EXACT, {"learning_rates": [[0.08]] * 10}, "other learning rates"),
        (Exactness.EXACT, {"losses": [2.001 - 0.1 * i for i in range(10)]}, "another loss"),
        (Exactness.ROUNDED, {"losses": [2.001 - 0.1 * i for i in range(10)]}, ""),
        (Exactness.ROUNDED, {"losses": [2.1 - 0.1 * i for i in range(10)]}, "another loss"),
    ],
)
def test_another_training_is_rejected(tmp_path: Path, exactness: Exactness, made: dict[str, float], words: str) -> None:
    original = Original(outcome(tmp_path / "a"), outcome(tmp_path / "b", noise=1e-6))
    why, evidence = judge(original, outcome(tmp_path / "c", **made), exactness)  # type: ignore[arg-type]
    assert why.startswith(words) and bool(why) == bool(words), why
    assert evidence.gradients is not None


def test_gradients_that_jump_under_rounding_are_allowed_to(tmp_path: Path) -> None:
    own, other = outcome(tmp_path / "a"), outcome(tmp_path / "b", noise=1e-6)
    found = outcome(tmp_path / "c", noise=1e-3)
    assert judge(Original(own, other, pytest.fail), own, Exactness.EXACT)[0] == "", "no run is needed for that"
    assert judge(Original(own, other), found, Exactness.EXACT)[0].startswith("other gradients")
    moved = {SUMS: [outcome(tmp_path / "d", noise=1e-3)], BFLOAT16: [outcome(tmp_path / "e", noise=1e-1)]}
    assert judge(Original(own, other, moved.__getitem__), found, Exactness.EXACT)[0] == ""
    assert judge(Original(own, other, moved.__getitem__), outcome(tmp_path / "f", scale=2.0), Exactness.EXACT)[0] != ""


class GivenRuns(ScriptRuns):
    """Answers with made outcomes; a recipe that has none is as slow as the script itself."""

    def __init__(self, tmp_path: Path, answers: dict[tuple[Step, ...], ScriptOutcome], own: ScriptOutcome) -> None:
        super().__init__(ScriptCommand(("python", "train.py"), 1, tmp_path), tmp_path, 12, 60.0)
        self._answers, self._own = answers, own

    def proof(self, steps: Sequence[Step] = (), *, num_threads: int = 0, left_s: float = math.inf) -> ScriptOutcome:
        return self._answers.get(tuple(steps), self._own)

    def timed(self, steps: Sequence[Step] = (), *, is_watched: bool = False, left_s: float = math.inf) -> ScriptOutcome:
        return self.proof(steps)


def searched(
    tmp_path: Path, applicable: Sequence[Step], answers: dict[tuple[Step, ...], ScriptOutcome], **asked: Any
) -> tuple[ScriptKind, list[TrialRecord]]:
    """Search a script whose runs are made."""
    own, other = outcome(tmp_path / "a"), outcome(tmp_path / "b", noise=1e-6)
    runs = GivenRuns(tmp_path, answers, own)
    watched = ScriptRecord(seconds=[], losses=[], applicable=list(applicable), shares=SHARES)
    kind = kind_of(runs.command, tmp_path / "out", 12, **asked)
    kind.work, kind.runs = fake_kind.work(), runs
    kind._examined = Examined(watched, timed_run(own), Original(own, other))
    kind.facts = facts_of(runs.command, kind._examined, (), 1.0)
    study = Study.open(default_storage(tmp_path), kind.title())
    limit = SearchTime(math.inf, math.inf)
    return kind, search_space(kind.space_to_search(), study, kind.goal, limit, kind.attempt, max_trials=8)


def test_the_search_combines_what_pays_and_records_failures(tmp_path: Path) -> None:
    compiled, threads = Step(technique="compile"), Step(technique="threads", options={"num_threads": 1})
    broken = [2.0, 1.9, math.nan, *[1.0] * 7]
    answers = {
        (AUTOCAST,): outcome(tmp_path / "c", noise=1e-3, seconds=[0.05] * 9),
        (compiled,): outcome(tmp_path / "d", losses=broken),
        (threads,): ScriptOutcome(tmp_path, None, "it ended with exit code 1: RuntimeError: no"),
        (AUTOCAST, FUSED): outcome(tmp_path / "e", noise=1e-3, seconds=[0.04] * 9),
    }
    kind, records = searched(tmp_path, [AUTOCAST, compiled, FUSED, threads], answers)
    found = {record.label: (record.status, record.reason) for record in records}
    assert found["autocast"] == ("done", "")
    assert found["compile"] == ("failed", "the loss of step 3 is nan")
    assert found["threads(num_threads=1)"] == ("failed", "it ended with exit code 1: RuntimeError: no")
    assert found["autocast + fused_optimizer"] == ("done", "")
    assert next(record for record in records if record.label == "autocast").speedup == pytest.approx(2.0)
    assert [r.label for r in kind._candidates(records)][:1] == ["autocast + fused_optimizer"]


def test_what_is_rejected_alone_is_tried_beside_what_is_kept(tmp_path: Path) -> None:
    layout, compiled = Step(technique="channels_last"), Step(technique="compile")
    answers = {
        (compiled,): outcome(tmp_path / "c", scale=0.0),
        (layout,): outcome(tmp_path / "d", seconds=[0.08] * 9),
        (layout, compiled): outcome(tmp_path / "e", seconds=[0.05] * 9),
    }
    kind, records = searched(tmp_path, [compiled, layout], answers)
    assert {record.label: record.status for record in records}["compile"] == "rejected"
    assert [r.label for r in kind._candidates(records)] == ["channels_last + compile"]


def test_what_is_slower_than_allowed_is_rejected_where_memory_is_asked_for(tmp_path: Path) -> None:
    memory = StepMemory(peak_bytes=700, parameter_bytes=1, gradient_bytes=1, optimizer_bytes=1, other_bytes=697)
    answers = {(AUTOCAST,): outcome(tmp_path / "c", noise=1e-3, seconds=[0.2] * 9, memory=memory)}
    _, [record, *_] = searched(tmp_path, [AUTOCAST], answers, goal=Goal("memory"))
    assert (record.status, record.rejected_for) == ("rejected", "slowdown")
    assert record.reason == "a step takes 2.00 times the original's time; 1.3 is allowed"
    assert record.peak_bytes == 700
    _, [large, *_] = searched(tmp_path / "2", [AUTOCAST], answers, goal=Goal("throughput", max_memory_bytes=600))
    assert (large.rejected_for, large.reason) == ("memory", "a step takes 700 B, more than the 600 B allowed")


def test_a_run_that_the_budget_cuts_off_is_tried_again_later(tmp_path: Path) -> None:
    kind, _ = searched(tmp_path, [FUSED], {})
    kind.runs = GivenRuns(
        tmp_path, {(FUSED,): ScriptOutcome(tmp_path, None, "it took longer than 0 s")}, kind._examined.original.run
    )
    stopped = kind.attempt(1, Recipe(steps=(FUSED,)), 0.0)
    assert (stopped.status, stopped.reason[:17]) == ("stopped", "was stopped after")
    assert kind.attempt(1, Recipe(steps=(FUSED,)), 60.0).status == "failed"


def test_the_training_loss_is_proved_in_pairs_with_other_seeds(
    scripts: Callable[[str], ScriptCommand], tmp_path: Path
) -> None:
    runs = ScriptRuns(scripts(TRAIN), tmp_path / "scratch", num_steps=40, limit_s=60)
    pairs = [loss_pair(runs, (FUSED,), seed) for seed in (1, 2, 3)]
    same = judge_pairs(pairs, allowed=0.02, score="training loss")
    assert same.is_same is True, same
    assert len({pair.old for pair in same.pairs}) == len(same.pairs) == 3
    assert same.words.startswith("same training loss")


@dataclass
class WrittenRuns:
    """Give losses in the place of runs: those of the original and those with a recipe."""

    old: list[float]
    new: list[float]
    longest_s: float = 0.0

    def for_loss(self, steps: Sequence[Step], seed: int) -> ScriptOutcome:
        losses: list[float | None] = [loss + 0.001 * seed for loss in (self.new if steps else self.old)]
        return ScriptOutcome(Path(), ScriptRecord(seconds=[], losses=losses))


FALLING, LATE = [2.0 - 0.02 * i for i in range(40)], [2.0] * 20 + [math.nan] * 20


@pytest.mark.parametrize(
    ("new", "said"),
    [
        (LATE, "the loss of step 21 is nan, with and without the recipe. "),
        (FALLING, "with the recipe it does not fail"),
    ],
)
def test_a_script_that_diverges_under_other_seeds_is_said_to(tmp_path: Path, new: list[float], said: str) -> None:
    def proved(runs: WrittenRuns) -> LossProof:
        kind = kind_of(ScriptCommand((), 0, tmp_path), tmp_path / "out")
        kind.work, kind.runs = fake_kind.work(), cast(ScriptRuns, runs)
        kind.facts = ScriptFacts.model_construct(quality_name="training loss")
        point = MeasuredVariant(steps=(AUTOCAST,), latency_ms=1.0, throughput_per_s=1.0, peak_bytes=0, size_bytes=0)
        kind.prove(point, point)
        assert point.losses is not None
        return point.losses

    proof = proved(WrittenRuns(LATE, new))
    assert proof.is_same is None
    assert (
        "the training loss is open: the original's own run with seed 1 fails: the loss of step 21 is nan" in proof.words
    )
    assert said in proof.words
    assert proved(WrittenRuns(FALLING, LATE)).is_same is False


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--", "bash", "train.py"], "bash is not a Python command; write it as: python train.py ARGUMENTS"),
        (["--", sys.executable, "missing.py"], "there is no script missing.py"),
        (["--objective", "size", "--", sys.executable, "train.py"], "--objective size goes with a model, and"),
        (["--allow-batch", "--", sys.executable, "train.py"], "--allow-batch goes with a training, and"),
        (["--resume", "--out", "new", "--", sys.executable, "train.py"], "holds no search to go on with"),
        (["--steps", "20", "digits-cnn"], "--steps goes with a script or a stream, and digits-cnn is a model"),
        (["--out", ".", "--", sys.executable, "train.py"], "exists already; choose another --out"),
    ],
)
def test_the_command_line_refuses(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TRAIN)
    with pytest.raises(SystemExit) as ended:
        main(["tune", *words])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
    assert [path.name for path in Path.cwd().iterdir()] == ["train.py"]
