"""whet tune on a training run, from the command line and from Python, on tiny models in child processes."""

import contextlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_kind
import pytest
import torch
from tiny_training import trainer_with

import whet
from whet.cli import main
from whet.comparison.run import Run
from whet.core.recipe import Recipe, Step
from whet.core.workload import TrainingWorkload
from whet.errors import ModelError, OptionError, TargetError
from whet.measure.isolate import Failure, FailureKind, Outcome
from whet.techniques.proof import gradients
from whet.techniques.proof.divergence import divergence
from whet.techniques.training import TRAINING_TABLE
from whet.tuner import finals
from whet.tuner.asked import Asked
from whet.tuner.finals import compare_finalists
from whet.tuner.goal import MAX_DROP_TRAINING, Goal
from whet.tuner.records import TrainingEvidence, TrialOutcome, TrialRecord
from whet.tuner.training.context import InterleavedBaseline, TrainingContext, timed
from whet.tuner.training.examination import write_gradients
from whet.tuner.training.facts import MOVED, KnownTraining, TrainingFacts
from whet.tuner.training.finals import PairServers
from whet.tuner.training.kind import TrainingKind
from whet.tuner.training.opening import NUM_DIGESTS, digests, first_batches, open_training
from whet.tuner.training.steps_process import StepsRequest, time_steps
from whet.tuner.training.trial import TrainingMeasured, TrainingTrial, run_training_trial
from whet.tuner.tuning import tune
from whet.workloads.target import resolve, resolve_any
from whet.workloads.target_name import is_training

SCRIPT = """
import os
import torch
import torch.nn.functional as F
from whet import Quality, TrainingWorkload


def batches():
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(128, 32, generator=generator)
    return list(zip(images.split(16), torch.randint(0, 4, (128,), generator=generator).split(16)))


def workload(**changes):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 4))
    held_out = batches()[0]
    fields = dict(
        model=model,
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        batches=batches(),
        evaluation=Quality("held-out loss", lambda predict: float(F.cross_entropy(predict(held_out[0]), held_out[1])),
                           higher_is_better=False),
        num_samples=16,
    )
    return TrainingWorkload(**{**fields, **changes})


def random_weights():
    made = workload()
    torch.seed()
    torch.nn.init.normal_(made.model[0].weight)
    return made


def diverges():
    return workload(loss=lambda model, batch: model(batch[0]).sum() * float("inf"))


def random_batches():
    return workload(batches=[(a + torch.Generator().seed() % 1_000_003 / 1e5, b) for a, b in batches()])


def random_step():
    return workload(optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=float(os.urandom(1)[0] + 1) / 500))


def nan_weights():
    made = workload()
    with torch.no_grad():
        made.model[2].weight[1, 2] = float("nan")
    return made


def nan_batches():
    found = batches()
    found[1][0][3] = float("inf")
    return workload(batches=found)


def too_large():
    return workload(loss=lambda model, batch: (model(batch[0])[:1, :1] * torch.ones(1, 10**12)).sum())


def random_forward():
    return workload(loss=lambda model, batch: F.cross_entropy(model(batch[0]) + torch.randn(16, 4), batch[1]))


def raises():
    return workload(loss=lambda model, batch: model(batch[0][:, :5]).sum())


def no_batches():
    return workload(batches=[])
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.usefixtures("forked")
def test_a_search_proves_what_it_tries_and_writes_a_recipe(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finals, "ROUNDS", 2)
    monkeypatch.setattr(finals, "MIN_ROUNDS", 2)
    out = tmp_path / "out"
    command = ["tune", f"{script}:workload", "--budget", "3m", "--out", str(out), "--on-busy", "go-on", "--json"]
    with pytest.raises(SystemExit) as ended:
        main([*command, "--exclude", ",".join(TRAINING_TABLE.keys() - {"fused_optimizer", "channels_last"})])
    assert ended.value.code in (0, 3, None)
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (summary["kind"], summary["objective"]) == ("training", "throughput")
    result = whet.Result.model_validate_json((out / "result.json").read_text())
    assert result.verdict in ("gain", "no-gain", "inconclusive")
    assert result.unit == "samples"
    assert {trial.status for trial in result.trials} <= {"done", "rejected", "stopped"}
    done = [trial for trial in result.trials if trial.status == "done"]
    assert done
    for trial in done:
        assert trial.training is not None and trial.training.gradients is not None and trial.training.memory is not None
        assert trial.training.gradients.is_same
        assert trial.training.memory.parameter_bytes == 4 * (32 * 64 + 64 + 64 * 4 + 4)
        assert trial.training.throughput_per_s > 0
        assert trial.training.set_up_s is not None and trial.training.set_up_s < trial.seconds
    refused = {one.technique: one.reason for one in result.refused}
    assert "no convolutions" in refused["channels_last"]
    assert refused["compile"] == "left out by --exclude"
    assert set(summary["phases_s"]) == {"data", "products", "attention", "loss", "other", "optimizer"}
    assert summary["report"] == str(out / "report.html")
    assert "prefers-color-scheme" in (out / "report.html").read_text()
    recipe = Recipe.read(out)
    assert recipe.kind == "training"
    assert "whet.prepare" in (out / "recipe.toml").read_text().splitlines()[0]
    model = torch.nn.Linear(2, 2)
    parts = whet.prepare(model, torch.optim.AdamW(model.parameters()), [], recipe=out)
    assert parts.model is model
    assert not (out / "trials").exists()


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        ("random_weights", TargetError, r"not reproducible from its seed: the weights differ .* first in 0.weight"),
        ("random_batches", TargetError, r"the weights are the same .* but the batches differ, first batch 1"),
        ("random_step", TargetError, r"weights and batches are the same .* but the step differs: step 2 had a loss"),
        ("diverges", ModelError, r"gradient of 0.weight is not finite in batch 1: the step itself diverges"),
        ("nan_weights", ModelError, r"the weights are not finite: 2.weight holds NaN or infinity"),
        ("nan_batches", ModelError, r"not finite in batch 2: the batches are not finite: batch 2 holds NaN"),
        (
            "too_large",
            ModelError,
            r"does not fit into memory: too large is the step: forward and backward",
        ),
        ("random_forward", TargetError, r"draws outside of dropout layers"),
        ("raises", ModelError, r"a first step of the training failed: mat1 and mat2 shapes cannot be multiplied"),
        ("no_batches", TargetError, r"batches gives no batch"),
    ],
)
def test_what_cannot_be_tuned_is_refused_with_its_reason(
    script: Path, tmp_path: Path, function: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        tune(f"{script}:{function}", out=tmp_path / "out", budget_s=60, on_busy="go-on")
    assert not (tmp_path / "out").exists(), "nothing is half-written"


def test_names_and_options_are_refused_before_the_first_line(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["nosuch"], ["nosuch.py:f"], ["docs-gpt-training", "--objective", "size"],
                  ["docs-gpt-training", "--exclude", "bf16"], [f"{script}:workload", "--budget", "0s"]):  # fmt: skip
        with pytest.raises(SystemExit, match="2"):
            main(["tune", *wrong])
        shown = capsys.readouterr()
        assert not shown.out, wrong
        assert shown.err.startswith("error: ")


def run_of(seconds: float, first: int = 3) -> Run:
    return Run(seconds=seconds, num_calls=9, calls_s=dict.fromkeys(range(first, first + 9), seconds))


def test_a_trial_is_compared_with_the_original_before_and_after_it(tmp_path: Path) -> None:
    """A machine that becomes slower and slower changes no ranking: half of a drift falls on each neighbour."""
    answers = iter((run_of(0.110), None, run_of(0.130)))

    def run(function: object, request: StepsRequest, folder: Path, limit_s: float) -> Outcome:
        assert function is time_steps
        assert request.steps == ()
        assert limit_s == 7.0
        answer = next(answers)
        value = None if answer is None else answer.model_dump(mode="json")
        return Outcome(value, None if value else Failure(FailureKind.TIMEOUT, "slow"), 1.0, 0)

    facts = TrainingFacts.model_construct(num_samples=16.0)
    context = TrainingContext("train.py:workload", facts, tmp_path, run, trial_limit_s=30.0)
    originals = InterleavedBaseline(context, run_of(0.100))
    evidence = TrainingEvidence(set_up_s=1.0)
    found = timed(facts, originals.around(7.0), run_of(0.105), evidence)
    assert found["speedup"] == pytest.approx((0.100 * 0.110) ** 0.5 / 0.105)
    assert found["baseline_latency_ms"] == pytest.approx(1e3 * (0.100 * 0.110) ** 0.5)
    alone = timed(facts, originals.around(7.0), run_of(0.110), evidence)
    assert alone["speedup"] == pytest.approx(1.0), "where it fails, the one before stands alone"
    last = timed(facts, originals.around(7.0), run_of(0.120, first=8), evidence)
    assert last["speedup"] == pytest.approx((0.110 * 0.130) ** 0.5 / 0.120), "on the steps that both made"


def made(run: Any, renew: Callable[[], None], directory: Path) -> TrainingKind:
    """A kind as it is once the original is measured, with these processes."""
    kind = TrainingKind(Asked(budget_s=600.0), contextlib.nullcontext())  # type: ignore[arg-type]
    kind.work = fake_kind.work(budget_s=600.0)
    kind.facts = TrainingFacts.model_construct(start_s=5.0, open_s=0.0, num_samples=16.0)
    kind.context = TrainingContext("x", kind.facts, directory, run, renew)
    kind._original = TrainingMeasured(outcome=TrialOutcome(status="done"), run=run_of(0.1))
    kind._original_run, kind._trial_s = run_of(0.1), 12.0
    kind._originals = SimpleNamespace(process_s=10.0)  # type: ignore[assignment]
    kind._servers = PairServers(renew)
    return kind


def test_what_the_shortest_proof_takes(tmp_path: Path) -> None:
    def record(technique: str, set_up_s: float | None) -> TrialRecord:
        evidence = TrainingEvidence(set_up_s=set_up_s)
        return TrialRecord(number=1, status="done", steps=[Step(technique=technique)], speedup=2.0, training=evidence)

    kind = made(lambda *_: None, lambda: None, tmp_path)
    assert kind.costs([]).finals_s == 6 * 25.0
    assert kind.costs([record("compile", 20.0)]).finals_s == pytest.approx(6 * (25.0 + 0.3 * 20.0))
    assert kind.costs([record("compile", 20.0)] * 2).finals_s == pytest.approx(6 * (50.0 + 0.3 * 40.0))
    assert kind.proofs_s([record("fused_optimizer", None)]) == 0.0
    assert kind.proofs_s([record("autocast", None)]) == pytest.approx(0.25 * 600), "a quarter of the budget"
    kind.work = fake_kind.work(budget_s=150.0)
    assert kind.proofs_s([record("autocast", None)]) == pytest.approx(0.25 * 150, rel=0.02), "finals take 150 s"
    kind.work = fake_kind.work(budget_s=130.0)
    assert 17 < kind.proofs_s([record("autocast", None)]) < 17.5, "and are left six pairs"


@pytest.mark.parametrize(
    ("left_s", "labels"), [(800, ["autocast", "fused"]), (400, ["autocast"]), (200, ["fused"]), (160, ["fused"])]
)
def test_the_finalists_are_those_whose_proof_fits(tmp_path: Path, left_s: float, labels: list[str]) -> None:
    """The finals of one take 150 s, of both 300; a loss takes a quarter of the budget."""
    steps = {"autocast": Step(technique="autocast"), "fused": Step(technique="fused_optimizer")}
    records = [
        TrialRecord(number=i, status="done", steps=[step], speedup=3.0 - i) for i, step in enumerate(steps.values())
    ]
    kind = made(lambda *_: None, lambda: None, tmp_path)
    clock = SimpleNamespace(now=0.0)
    kind.work = fake_kind.work(budget_s=600.0, clock=lambda: clock.now)
    clock.now = kind.work.budget.left_at_most_s - left_s
    assert [name for r in kind.finalists(records) for name, step in steps.items() if step in r.steps] == labels
    kept = kind.time_for_trials(12.0).kept_s(records)
    assert kept == {800: 450.0, 400: 300.0, 200: 150.0, 160: 0.0}[int(left_s)]


def test_trials_leave_the_proof_its_time(tmp_path: Path) -> None:
    clock = SimpleNamespace(now=0.0)
    kind = made(lambda *_: None, lambda: None, tmp_path)
    kind.work = fake_kind.work(budget_s=600.0, clock=lambda: clock.now)
    found = [TrialRecord(number=1, status="done", steps=[Step(technique="autocast")], speedup=2.0)]
    limit = kind.time_for_trials(12.0)
    assert limit.kept_s([]) == 150.0
    assert limit.kept_s(found) == 150.0 + 150.0
    clock.now = 700.0  # a proof does not fit any more: all that is left is for trials
    assert kind.time_for_trials(12.0).kept_s(found) == 0.0


def test_each_pair_of_the_finals_has_a_server_of_its_own(tmp_path: Path) -> None:
    done: list[str] = []

    def run(function: object, request: StepsRequest, folder: Path, limit_s: float) -> Outcome:
        done.append("new" if request.steps else "old")
        return Outcome(run_of(0.1).model_dump(mode="json"), None, 1.0, 0)

    kind = made(run, lambda: done.append("renewed"), tmp_path)
    record = TrialRecord(number=1, status="done", steps=[Step(technique="compile")], speedup=2.0)
    compare_finalists(kind, [record], [record])
    assert done[:6] == ["renewed", "old", "new", "renewed", "new", "old"]
    assert done.count("renewed") == len(done) / 3


def test_a_side_that_is_measured_again_begins_its_pair_anew() -> None:
    done: list[str] = []
    servers = PairServers(lambda: done.append("renewed"))
    for name in ("old", "old", "new", "new", "old", "old", "other"):
        servers.begin(name)
        done.append(name)
    pairs = " ".join(done).split("renewed")
    assert [pair.split() for pair in pairs[1:]] == [["old"], ["old", "new"], ["new", "old"], ["old", "other"]]


def test_how_far_bfloat16_moves_gradients_is_asked_where_a_technique_rounds(script: Path, tmp_path: Path) -> None:
    for may_round, kinds in ((False, {"error"}), (True, {"error", "bend", "length"})):
        folder = tmp_path / str(may_round)
        folder.mkdir()
        write_gradients(open_training(f"{script}:workload"), folder, may_round=may_round)
        assert {name.partition(".")[0] for name in gradients.read(folder / MOVED)} == kinds


def test_a_loss_that_diverges_is_told_with_its_step() -> None:
    assert divergence([2.0, 1.9, 2.1]) == ""
    assert divergence([2.0, math.nan]) == "the loss of step 2 is nan"
    assert (
        divergence([2.0, 15.0, 21.0], most=20.0)
        == "the loss of step 3 is 21, more than 10 times the original's largest"
    )


def test_a_candidate_that_diverges_is_a_failure_with_its_step(script: Path, tmp_path: Path) -> None:
    """The original's largest loss is about 1.5: a limit far below that makes every run a diverging one."""
    target = f"{script}:workload"
    made = open_training(target)
    data = first_batches(made, NUM_DIGESTS)
    write_gradients(made, tmp_path)
    later = digests(first_batches(made, NUM_DIGESTS, later=1))
    known = KnownTraining(target=target, directory=tmp_path, batches=digests(data), next_batches=later)
    sound = run_training_trial(TrainingTrial(known=known, timing_s=0.01))
    assert sound.outcome.status == "done"
    assert sound.run is not None and sound.outcome.training is not None and sound.outcome.training.memory is not None
    assert sound.run.peak_bytes == sound.outcome.training.memory.peak_bytes, "without what the process held before"
    assert min(sound.run.calls_s) >= 5, "numbered from the first step of the training, the proof's steps included"
    failed = run_training_trial(TrainingTrial(known=known, timing_s=0.01, most_loss=0.1))
    assert failed.outcome.status == "failed"
    assert failed.outcome.reason.startswith("the loss of step 1 is 1.")
    assert failed.run is None


def test_wrong_options_are_refused_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"no technique 'bf16' to exclude; .*There are: chunked_loss"):
        tune("docs-gpt-training", exclude=["bf16"], out=tmp_path / "out")
    with pytest.raises(OptionError, match="objective must be throughput or memory"):
        tune("docs-gpt-training", objective="size", out=tmp_path / "out")
    with pytest.raises(OptionError, match="max_slowdown must be more than 0"):
        tune("docs-gpt-training", max_slowdown=0.0, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_goal_of_a_training() -> None:
    goal = Goal.checked("latency", None, None, 10).for_training()
    assert (goal.objective, goal.max_drop) == ("throughput", MAX_DROP_TRAINING)
    assert Goal.checked("memory", 0.02, None, 10).for_training().max_drop == 0.02


def test_names_of_training_runs() -> None:
    assert is_training("docs-gpt-training")
    assert is_training("hf:dir?batch=2&train=text.txt")
    assert not is_training("docs-gpt")
    assert not is_training("hf:dir?batch=2")
    with pytest.raises(TargetError, match="is a TrainingWorkload; here whet takes an InferenceWorkload"):
        resolve("digits-cnn-training")


@pytest.mark.parametrize("name", ["docs-gpt-training", "digits-cnn-training"])
def test_a_built_in_training_learns(name: str) -> None:
    """The loss falls from that of a guess, and two builds are the same."""
    workload = resolve_any(name)
    assert isinstance(workload, TrainingWorkload)
    again = resolve_any(name)
    assert isinstance(again, TrainingWorkload)
    for a, b in zip(workload.model.parameters(), again.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    trainer = trainer_with(workload, Step(technique="fused_optimizer"))
    losses = [float(trainer.step()) for _ in range(15)]
    guess = math.log(2048 if name == "docs-gpt-training" else 10)
    assert losses[0] == pytest.approx(guess, rel=0.1)
    assert losses[-1] < losses[0] - 0.05 * guess


def test_train_goes_with_a_directory(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["tune", "digits-cnn", "--train", "text.txt"])
    assert "--train goes with hf:DIR" in capsys.readouterr().err
