"""whet tune --nproc: several processes of this machine share a training, and the plan of sharing is searched."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import test_training

import whet
from whet.cli import main
from whet.comparison.run import Run
from whet.core.recipe import Recipe, Step
from whet.measure.isolate import FailureKind
from whet.techniques.training import TRAINING_TABLE
from whet.tuner import finals
from whet.tuner.budget import Runner
from whet.tuner.kind_options import PLAN_TECHNIQUES
from whet.tuner.processes import shared_processes, training_processes
from whet.tuner.training.examination import write_gradients
from whet.tuner.training.facts import KnownTraining
from whet.tuner.training.opening import NUM_DIGESTS, digests, first_batches, open_training
from whet.tuner.training.plan_techniques import PLAN_TABLE, plan_of
from whet.tuner.training.shared_kind import chosen
from whet.tuner.training.shared_step import SharedStep
from whet.tuner.training.steps_process import StepsRequest, time_steps
from whet.tuner.training.trial import (
    LossRequest,
    LossRun,
    TrainingMeasured,
    TrainingTrial,
    run_training_trial,
    train_for_loss,
)

SCRIPT = (
    test_training.SCRIPT
    + """

def normed():
    return workload(model=torch.nn.Sequential(torch.nn.Linear(32, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 4)))


def single_rows():
    return workload(batches=[(x[:1], y[:1]) for x, y in batches()], num_samples=1)


def accumulated():
    return workload(num_accumulated=2)


def clipped():
    return workload(clip_norm=0.1)


def summed():
    return workload(loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], reduction="sum"))


class Dying(torch.nn.Linear):
    def forward(self, x):
        if os.environ.get("WHET_RANK") == "1":
            os.kill(os.getpid(), 9)
        return super().forward(x)


def dies():
    torch.manual_seed(0)
    return workload(model=Dying(32, 4))


def model():
    return torch.nn.Linear(32, 4), torch.zeros(2, 32)
"""
)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def run(short_children: None) -> Iterator[Runner]:
    """What runs a function in one process or in two, by the recipe."""
    with training_processes(None) as alone, shared_processes(2, 1, None) as shared:
        yield chosen(alone.run, shared.run)


def known(target: str, directory: Path) -> KnownTraining:
    """A training as its examination in one process leaves it."""
    workload = open_training(target)
    write_gradients(workload, directory)
    seen, later = (digests(first_batches(workload, NUM_DIGESTS, later=later)) for later in (0, 1))
    return KnownTraining(target=target, directory=directory, batches=seen, next_batches=later)


def step(name: str, **options: bool | float | str) -> Step:
    return Step(technique=name, options=options)


def tried(run: Runner, target: KnownTraining, *steps: Step) -> TrainingMeasured:
    outcome = run(
        run_training_trial, TrainingTrial(known=target, steps=steps, timing_s=0.01), target.directory / "t", 60
    )
    assert outcome.failure is None, outcome.failure
    found = outcome.answer(TrainingMeasured)
    assert found is not None
    return found


def test_each_plan_keeps_gradients_and_updates_of_one_process_or_is_rejected(
    script: Path, tmp_path: Path, run: Runner
) -> None:
    target = known(f"{script}:clipped", tmp_path)
    original = tried(run, target)
    assert original.shared is not None and original.shared.total_s > 0
    same = [
        (),
        (step("zero_1"), step("bucket_size", mb=1.0), step("static_graph")),
        (step("zero_3"), step("fused_optimizer"), step("accumulation", num_parts=4)),
        (step("gradients_16_bit", precision="bf16"),),
        (step("one_process"),),
    ]
    for steps in same:
        outcome = tried(run, target, *steps).outcome
        assert outcome.status == "done", (steps, outcome.reason)
        evidence = outcome.training
        assert evidence is not None and evidence.gradients is not None and evidence.updates is not None
        assert evidence.gradients.is_same and evidence.updates.is_same
    wrong = tried(run, target, step("powersgd", rank=1)).outcome
    assert (wrong.status, wrong.rejected_for) == ("rejected", "quality")
    assert "other gradients" in wrong.reason
    refused = tried(run, target, step("zero_1"), step("fused_optimizer")).outcome
    assert refused.status == "refused" and "zero_stage 1 has divided" in refused.reason


def test_losses_of_two_processes_are_those_of_one(script: Path, tmp_path: Path, run: Runner) -> None:
    found = []
    for steps in ((), (step("zero_3"),), (step("one_process"),)):
        request = LossRequest(target=f"{script}:workload", steps=steps, seed=3, num_steps=12)
        answer = run(train_for_loss, request, tmp_path / "loss", 60).answer(LossRun)
        assert answer is not None and answer.failure == ""
        found.append(answer.held_out)
    assert found == pytest.approx([found[0]] * 3, rel=1e-5)
    assert found[0] < answer.begin


def test_a_side_of_the_finals_times_steps_of_all(script: Path, tmp_path: Path, run: Runner) -> None:
    outcome = run(time_steps, StepsRequest(target=f"{script}:workload", timing_s=0.05), tmp_path / "side", 60)
    answer = outcome.answer(Run)
    assert outcome.failure is None and answer is not None
    assert answer.num_calls >= 5 and answer.seconds > 0 and answer.peak_bytes > 0


def test_a_rank_that_is_killed_ends_the_trial_with_its_reason_and_leaves_no_process(
    script: Path, tmp_path: Path, run: Runner
) -> None:
    target = known(f"{script}:dies", tmp_path)
    outcome = run(run_training_trial, TrainingTrial(known=target), tmp_path / "t", 60)
    assert outcome.failure is not None
    assert outcome.failure.kind is FailureKind.CRASH
    assert outcome.failure.message.startswith("rank 1: the process was ended by SIGKILL")
    assert outcome.seconds < 30


@pytest.mark.usefixtures("short_children")
def test_a_search_writes_a_plan_that_whet_train_takes_and_goes_on(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finals, "ROUNDS", 2)
    monkeypatch.setattr(finals, "MIN_ROUNDS", 2)
    out, kept = tmp_path / "out", {"one_process", "zero_1"}
    left_out = ",".join(({*TRAINING_TABLE} | {*PLAN_TECHNIQUES}) - kept)
    command = ["tune", f"{script}:workload", "--nproc", "2", "--budget", "3m", "--exclude", left_out, "--json"]
    command += ["--on-busy", "go-on", "--out", str(out)]
    for more in ([], ["--resume"]):
        with pytest.raises(SystemExit) as ended:
            main([*command, *more])
        assert ended.value.code in (0, 3, None)
        summary = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert summary["num_processes"] == 2
        result = whet.Result.model_validate_json((out / "result.json").read_text())
        tried_steps = [trial.steps for trial in result.trials]
        assert tried_steps[0] == (Step(technique="one_process"),)
        assert len(set(tried_steps)) == len(tried_steps)
        assert "--nproc 2" in result.command
        assert result.one_process is not None and result.one_process.speedup > 0
        text = (out / "parallel.toml").read_text()
        if result.plan is None:
            assert any(step.technique == "one_process" for step in result.best.steps)
            assert tomllib.loads(text) == {}
        else:
            plan = whet.ParallelPlan(**tomllib.loads(text)["parallel"])
            assert plan == plan_of(result.best.steps)
            assert "torchrun --standalone --nproc-per-node 2" in text
        recipe = Recipe.read(out / "recipe.toml")
        assert not {step.technique for step in recipe.steps} & {*PLAN_TECHNIQUES}
        page = (out / "report.html").read_text()
        assert "One process with all cores is" in page and "whet.ParallelPlan" in page


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("normed", "1 is a batch norm, of which each of 2 processes would see its own rows alone"),
        ("single_rows", "a batch of 1 row gives none to some of the 2 processes that share it"),
        ("accumulated", "sums the gradients of 2 batches in a step"),
        ("summed", "the mean over the rows of its batch"),
        ("model", "--nproc goes with a training"),
    ],
)
def test_what_processes_cannot_share_is_refused_with_its_reason(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, said: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["tune", f"{script}:{name}", "--nproc", "2", "--on-busy", "go-on", "--out", str(tmp_path / "out")])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert said in " ".join(error.split())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train.py:workload", "--nproc", "1"], "--nproc takes 2 processes or more, and got 1"),
        (["train.py:workload", "--nproc", "0"], "--nproc takes 2 processes or more, and got 0"),
        (["digits-cnn", "--nproc", "2"], "--nproc goes with a training, and digits-cnn is a model"),
        (["--nproc", "2", "--", "python", "train.py"], "is a script; give the processes to its own launcher"),
        (["signs-stream", "--nproc", "2"], "--nproc goes with a training, and signs-stream is a stream"),
        (["train.py:workload", "--exclude", "zero_1"], "there is no technique 'zero_1' to exclude"),
    ],
)
def test_options_without_a_meaning_are_refused_before_the_work(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    monkeypatch.chdir(script.parent)
    with pytest.raises(SystemExit) as ended:
        main(["tune", *words])
    assert ended.value.code == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_plan_says_what_its_recipe_sets() -> None:
    assert plan_of(()) == whet.ParallelPlan(zero_stage=0)
    assert plan_of((step("zero_1"), step("bucket_size", mb=5.0))) == whet.ParallelPlan(zero_stage=1, bucket_cap_mb=5)
    powersgd = whet.ParallelPlan(zero_stage=0, compression="powersgd", powersgd_rank=1, powersgd_start_step=2)
    assert plan_of((step("powersgd", rank=1), step("fused_optimizer"))) == powersgd
    for technique in PLAN_TABLE.values():  # each value of each option makes a plan that fits itself
        for name, values in technique.space.items():
            for value in values:
                plan_of((step(technique.name, **{name: value}),))


def test_what_a_plan_can_save_of_a_step() -> None:
    shared = SharedStep(total_s=0.010, alone_s=0.008, optimizer_s=0.004)
    assert shared.bound(2, exchanges_less=True, divides_update=False) == pytest.approx(10 / 8)
    assert shared.bound(4, exchanges_less=False, divides_update=True) == pytest.approx(10 / 7)
    assert shared.bound(2, exchanges_less=False, divides_update=False) == 1.0
    assert SharedStep(total_s=0.010, alone_s=0.011, optimizer_s=0.004).exchange_s == 0.0
    assert shared.words(2) == "On 2 processes it takes 10 ms: 20% sums of gradients, 40% optimiser."
