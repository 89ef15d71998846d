"""whet tune -- python train.py: the search, the proof and the verdict, on scripts that nobody has changed."""

import json
import math
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
import script_process
import torch

from whet.cli import main
from whet.errors import ModelError, OptionError, TargetError
from whet.measure.quiet import Patience
from whet.recipe import Recipe, Step
from whet.scripts.command import ScriptCommand, ScriptOutcome
from whet.scripts.messages import GRADIENTS, ScriptRecord
from whet.techniques.training import TRAINING_TABLE
from whet.training import gradients
from whet.training.loss_proof import LossProof
from whet.training.sensitivity import BFLOAT16, SUMS
from whet.training.technique import Exactness
from whet.tuner.budget import Budget
from whet.tuner.listener import Listener
from whet.tuner.records import TrialRecord
from whet.tuner.result import MeasuredVariant
from whet.tuner.scripts import tuning
from whet.tuner.scripts.proof import Original, judge
from whet.tuner.scripts.runs import ScriptRuns
from whet.tuner.scripts.search import Candidate, ScriptSearch, candidates
from whet.tuner.scripts.tuning import ScriptPlan, examine, tune_planned
from whet.tuner.scripts.verdict import Spent, verdict
from whet.tuner.verdict_costs import VerdictCosts

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
FUSED = Step(technique="fused_optimizer")
AUTOCAST = Step(technique="autocast")


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


def test_a_script_is_tuned_and_nothing_of_the_users_changes(
    scripts: Callable[[str], ScriptCommand], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "_ROUNDS", 2)
    monkeypatch.setattr(tuning, "_MIN_ROUNDS", 2)
    others = tuple(TRAINING_TABLE.keys() - {"fused_optimizer"})
    plan = ScriptPlan(scripts(TRAIN), tmp_path / "out", num_steps=8, budget_s=120, exclude=others)
    result = tune_planned(plan, Patience("go-on"), Listener())
    assert [(trial.status, trial.label) for trial in result.trials] in ([("done", "fused_optimizer(kind=fused)")], [])
    assert result.kind == "training" and result.baseline.throughput_per_s > 0
    for trial in result.trials:
        assert trial.training is not None and trial.training.gradients is not None
        assert "against the script's own" in trial.training.gradients.words
    assert Recipe.read(tmp_path / "out").kind == "training"
    assert json.loads((tmp_path / "out" / "result.json").read_text())["verdict"] == result.verdict
    assert [path.name for path in Path.cwd().iterdir()] == ["train.py"]
    assert Path("train.py").read_text() == TRAIN


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
        ScriptPlan(scripts(TRAIN), tmp_path, num_steps=4)


def outcome(directory: Path, scale: float = 1.0, noise: float = 0.0, **facts: object) -> ScriptOutcome:
    """A run with the gradients of three steps, scaled, with errors of relative size `noise`."""
    directory.mkdir(parents=True)
    generator = torch.Generator().manual_seed(1)
    true = {f"{i}.weight": torch.randn(64, generator=generator) for i in range(3)}
    found = {key: scale * (g + noise * torch.randn(64, generator=generator)) for key, g in true.items()}
    gradients.write(
        {k: v for key, g in found.items() for k, v in gradients.noted(key, g).items()}, directory / GRADIENTS
    )
    record = {"seconds": [0.1] * 9, "losses": [2.0 - 0.1 * i for i in range(10)], "learning_rates": [[0.1]] * 10}
    return ScriptOutcome(directory, ScriptRecord.model_validate({**record, **facts}))


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
    """Answers with made outcomes."""

    def __init__(self, tmp_path: Path, answers: dict[tuple[Step, ...], ScriptOutcome]) -> None:
        super().__init__(ScriptCommand(("python", "train.py"), 1, tmp_path), tmp_path, 12, 60.0)
        self._answers = answers

    def proof(self, steps: object = (), *, num_threads: int = 0) -> ScriptOutcome:
        return self._answers[tuple(steps)]  # type: ignore[arg-type]


def test_the_search_keeps_what_pays_and_records_failures(tmp_path: Path) -> None:
    fast = {"seconds": [0.05] * 9}
    original = Original(outcome(tmp_path / "a"), outcome(tmp_path / "b", noise=1e-6))
    broken = [2.0, 1.9, math.nan, *[1.0] * 7]
    compiled, threads = Step(technique="compile"), Step(technique="threads", options={"num_threads": 1})
    answers = {
        (AUTOCAST,): outcome(tmp_path / "c", noise=1e-3, **fast),
        (AUTOCAST, compiled): outcome(tmp_path / "d", losses=broken),
        (AUTOCAST, FUSED): outcome(tmp_path / "e", noise=1e-3),
        (AUTOCAST, threads): ScriptOutcome(tmp_path, None, "it ended with exit code 1: RuntimeError: no"),
    }
    search = ScriptSearch(GivenRuns(tmp_path, answers), original, Patience("go-on"), Listener())
    search.go([Candidate(step, 1.5) for step in (AUTOCAST, compiled, FUSED, threads)], 60.0)
    assert [(r.status, r.reason) for r in search.records] == [
        ("done", ""),
        ("failed", "the loss of step 3 is nan"),
        ("done", ""),
        ("failed", "it ended with exit code 1: RuntimeError: no"),
    ]
    assert search.records[0].speedup == pytest.approx(2.0)
    assert [r.label for r in tuning.finalists(search.records)] == ["autocast"]


def test_what_is_rejected_alone_is_tried_beside_what_is_kept(tmp_path: Path) -> None:
    original = Original(outcome(tmp_path / "a"), outcome(tmp_path / "b", noise=1e-6))
    layout, compiled = Step(technique="channels_last"), Step(technique="compile")
    answers = {
        (compiled,): outcome(tmp_path / "c", scale=0.0),
        (layout,): outcome(tmp_path / "d", seconds=[0.08] * 9),
        (layout, compiled): outcome(tmp_path / "e", seconds=[0.05] * 9),
    }
    search = ScriptSearch(GivenRuns(tmp_path, answers), original, Patience("go-on"), Listener())
    search.go([Candidate(compiled, 1.5), Candidate(layout, 1.4)], 60.0)
    assert [record.status for record in search.records] == ["rejected", "done", "done"]
    assert [r.label for r in tuning.finalists(search.records)] == ["channels_last + compile"]


def test_other_options_of_what_is_kept_come_last_in_its_place(tmp_path: Path) -> None:
    keep, jemalloc, tcmalloc = (
        Step(technique="allocator", options={"kind": kind}) for kind in ("keep", "jemalloc", "tcmalloc")
    )
    original = Original(outcome(tmp_path / "a"), outcome(tmp_path / "b", noise=1e-6))
    answers = {
        (keep,): outcome(tmp_path / "c", seconds=[0.09] * 9),
        (FUSED, keep): outcome(tmp_path / "d", seconds=[0.08] * 9),
        (FUSED, jemalloc): outcome(tmp_path / "e", seconds=[0.05] * 9),
        (FUSED, tcmalloc): outcome(tmp_path / "f", seconds=[0.06] * 9),
    }
    search = ScriptSearch(GivenRuns(tmp_path, answers), original, Patience("go-on"), Listener())
    search.go([Candidate(step, 1.5) for step in (keep, jemalloc, tcmalloc, FUSED)], 60.0)
    assert [record.steps for record in search.records] == list(answers)
    assert [r.steps for r in tuning.finalists(search.records)] == [(FUSED, jemalloc)]


def test_candidates_are_ordered_by_what_they_change() -> None:
    steps = [FUSED, AUTOCAST, Step(technique="compile")]
    shares = {"forward": 0.5, "backward": 0.3, "optimiser": 0.1}
    record = ScriptRecord(seconds=[], losses=[], applicable=steps, shares=shares)
    found, cannot = candidates(record, exclude=["compile"])
    assert [one.step for one in found] == [AUTOCAST, FUSED] and not cannot
    found, cannot = candidates(record.model_copy(update={"shares": {"forward": 1.0}}), exclude=[])
    assert FUSED not in [one.step for one in found]
    assert [(one.technique, one.reason) for one in cannot] == [
        ("fused_optimizer", "the optimiser takes 0.0% of a step")
    ]


def test_what_reads_data_is_tried_where_the_loop_waits_for_them() -> None:
    loader = Step(technique="loader", options={"num_workers": 1})
    shares = {"forward": 0.4, "backward": 0.3, "data wait": 0.3}
    record = ScriptRecord(seconds=[], losses=[], applicable=[loader], shares=shares)
    [found], _ = candidates(record, exclude=[])
    assert found.promise == pytest.approx(1 / 0.7)
    _, [cannot] = candidates(record.model_copy(update={"shares": {"data wait": 0.01}}), exclude=[])
    assert cannot.reason == "waiting for data takes 1.0% of a step"


def test_what_needs_another_technique_waits_for_it(tmp_path: Path) -> None:
    attention = Step(technique="product_attention", options={"keep": True})
    original = Original(outcome(tmp_path / "a"), outcome(tmp_path / "b", noise=1e-6))
    answers = {
        (AUTOCAST,): outcome(tmp_path / "c", noise=1e-3, seconds=[0.05] * 9),
        (attention, AUTOCAST): outcome(tmp_path / "d", noise=1e-3, seconds=[0.04] * 9),
    }
    search = ScriptSearch(GivenRuns(tmp_path, answers), original, Patience("go-on"), Listener())
    search.go([Candidate(attention, 1.5), Candidate(AUTOCAST, 1.4)], 60.0)
    assert [record.steps for record in search.records] == list(answers)
    alone = ScriptSearch(GivenRuns(tmp_path, {}), original, Patience("go-on"), Listener())
    alone.go([Candidate(attention, 1.5)], 60.0)
    assert not alone.records
    assert [(one.technique, one.reason) for one in alone.untried] == [
        ("product_attention", "nothing that it needs beside it was kept")
    ]


def point(steps: tuple[Step, ...], speedup: float, losses: LossProof | None = None) -> MeasuredVariant:
    return MeasuredVariant(
        steps=steps,
        label=str(Recipe(steps=steps)),
        latency_ms=1.0,
        throughput_per_s=1000.0,
        peak_bytes=0,
        size_bytes=0,
        speedup=speedup,
        verdict="pass" if speedup > 1 else "fail",
        losses=losses,
    )


def proof(is_same: bool | None) -> LossProof:
    return LossProof(is_same=is_same, drop=0.0, most=0.001, grown=0.0, allowed=0.0025, score="training loss")


SPENT = Spent(35.0, VerdictCosts(trial_s=4.0, pair_s=9.0), needed_s=180.0, num_untried=5)


def record(speedup: float) -> TrialRecord:
    return TrialRecord(number=1, steps=(FUSED,), status="done", speedup=speedup)


@pytest.mark.parametrize(
    ("points", "word", "label", "said"),
    [
        ([point((AUTOCAST,), 1.8, proof(True))], "gain", "autocast", "autocast: 1.80x"),
        ([point((AUTOCAST,), 1.8, proof(None))], "inconclusive", "original", "is allowed; --budget 3m would be enough"),
        (
            [point((AUTOCAST,), 1.8)],
            "inconclusive",
            "original",
            "no pair of runs for its training loss fitted into the budget; --budget",
        ),
        ([point((AUTOCAST,), 1.8, proof(False))], "no-gain", "original", "worse training loss"),
        (
            [point((AUTOCAST,), 1.8, proof(False)), point((FUSED,), 1.2)],
            "gain",
            "fused_optimizer",
            "autocast is left out: worse training loss",
        ),
        ([point((FUSED,), 0.9)], "no-gain", "original", "Nothing is proved to be faster"),
    ],
)
def test_the_verdict(points: list[MeasuredVariant], word: str, label: str, said: str) -> None:
    records = [TrialRecord(number=1, steps=(FUSED,), status="done", speedup=1.1)]
    baseline = point((), 1.0).model_copy(update={"label": "original"})
    found = verdict(baseline, points, records, Patience("go-on"), SPENT)
    assert (found[0], found[2].label) == (word, label)
    assert said in found[1]
    assert found[3] == ("--budget" in said)


@pytest.mark.parametrize(
    ("points", "records", "said"),
    [
        (
            [],
            [],
            r"ended before anything was tried: to examine the script took 35 s, and a trial takes 4 s; --budget 3m ",
        ),
        (
            [],
            [record(1.62)],
            r"showed 1\.62x in the screening, which proves nothing: the finals did not fit .* 3m would",
        ),
        (
            [point((FUSED,), 1.1).model_copy(update={"verdict": "inconclusive"})],
            [record(1.1)],
            r"do not tell.* 3m would",
        ),
    ],
)
def test_a_budget_that_is_too_small_is_told_which_one_would_do(
    points: list[MeasuredVariant], records: list[TrialRecord], said: str
) -> None:
    baseline = point((), 1.0)
    word, sentence, kept, wants_time = verdict(baseline, points, records, Patience("go-on"), SPENT)
    assert (word, kept, wants_time) == ("inconclusive", baseline, True)
    assert re.search(said, sentence), sentence


class Clock:
    """A clock that stands still until it is set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("budget_s", "spent_s", "search_s"),
    [
        (60, 35, 21.0),  # no finals fit after a trial: all that is left is for trials
        (60, 59, 0.5),  # one trial fits into the time by which a budget may be exceeded
        (60, 80, -1.0),
        (300, 35, 300 - 35 - 4 - 6 * 9 - 3 * 10),  # the finals and the proof of the loss have their time
        (120, 35, 0.5),
    ],
)
def test_a_budget_is_used_up(budget_s: float, spent_s: float, search_s: float) -> None:
    clock, costs = Clock(), VerdictCosts(trial_s=4.0, pair_s=9.0, loss_pair_s=10.0)
    budget = Budget(budget_s, clock=clock)
    clock.now = spent_s
    assert costs.search_s(budget) == pytest.approx(search_s)
    assert costs.needed_s(35.0, num_trials=5) == 180.0  # 35 + 20 + 54 + 30, in whole minutes beyond two


def test_the_training_loss_is_proved_in_pairs_with_other_seeds(
    scripts: Callable[[str], ScriptCommand], tmp_path: Path
) -> None:
    plan = ScriptPlan(scripts(TRAIN), tmp_path / "out", num_steps=40, budget_s=300, max_drop=0.02)
    runs = ScriptRuns(plan.command, tmp_path / "scratch", num_steps=40, limit_s=60)
    same = tuning._prove(plan, runs, Budget(300), (FUSED,), Listener())
    assert same is not None and same.is_same is True, same
    assert len({pair.old for pair in same.pairs}) == len(same.pairs) == 3
    assert same.words.startswith("same training loss")


@dataclass
class WrittenRuns:
    """Give losses in the place of runs: those of the original and those with a recipe."""

    old: list[float]
    new: list[float]
    longest_s: float = 0.0

    def for_loss(self, steps: Sequence[Step], seed: int, num_steps: int) -> ScriptOutcome:
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
    plan = ScriptPlan(ScriptCommand((), 0, tmp_path), tmp_path / "out")
    proof = tuning._prove(plan, cast(ScriptRuns, WrittenRuns(LATE, new)), Budget(300), (FUSED,), Listener())
    assert proof is not None and proof.is_same is None
    assert (
        "the training loss is open: the original's own run with seed 1 fails: the loss of step 21 is nan" in proof.words
    )
    assert said in proof.words
    blamed = tuning._prove(plan, cast(ScriptRuns, WrittenRuns(FALLING, LATE)), Budget(300), (FUSED,), Listener())
    assert blamed is not None and blamed.is_same is False


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--", "bash", "train.py"], "bash is not a Python command; write it as: python train.py ARGUMENTS"),
        (["--", sys.executable, "missing.py"], "there is no script missing.py"),
        (["--objective", "memory", "--", sys.executable, "train.py"], "--objective memory does not go with a script"),
        (["--resume", "--", sys.executable, "train.py"], "--resume does not go with a script"),
        (["--steps", "20", "digits-cnn"], "--steps goes with a script"),
        (["--out", ".", "--", sys.executable, "train.py"], "is not empty; choose another --out"),
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
