"""whet tune on a training run, from the command line and from Python, on tiny models in child processes."""

import json
import math
from pathlib import Path

import pytest
import torch
from tiny_training import trainer_with

import whet
from whet.cli import main
from whet.errors import ModelError, OptionError, TargetError
from whet.recipe import Recipe, Step
from whet.tuner.goal import MAX_DROP_TRAINING, Goal
from whet.tuner.tuning import tune
from whet.workload import TrainingWorkload
from whet.workloads.target import is_training, resolve, resolve_any

SCRIPT = """
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
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = ["tune", f"{script}:workload", "--budget", "25s", "--out", str(out), "--on-busy", "go-on", "--json"]
    with pytest.raises(SystemExit) as ended:
        main([*command, "--exclude", "compile,adamw_8bit"])
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
    refused = {one.technique: one.reason for one in result.refused}
    assert "no convolutions" in refused["channels_last"]
    assert refused["compile"] == "left out by --exclude"
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
        ("random_weights", TargetError, r"not reproducible from its seed: step \d had a loss of"),
        ("diverges", ModelError, r"the gradient of 0.weight is not finite in the first batches"),
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


def test_wrong_options_are_refused_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no technique 'bf16' to exclude; there are: chunked_loss"):
        tune("docs-gpt-training", exclude=["bf16"], out=tmp_path / "out")
    with pytest.raises(OptionError, match="objective must be throughput or memory"):
        tune("docs-gpt-training", objective="size", out=tmp_path / "out")
    with pytest.raises(OptionError, match="max_slowdown must be 1 or more"):
        tune("docs-gpt-training", max_slowdown=0.5, out=tmp_path / "out")
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
