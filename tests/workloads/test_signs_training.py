"""The training of signs-stream, with small networks and photos in which nothing is a hand."""

import json
import math

import pytest
import torch
from benchmarks.built_in_weights.__main__ import main
from benchmarks.built_in_weights.resumable import Limit, Stage, average, fit
from benchmarks.built_in_weights.signs_stages import (
    classifier_stage,
    draw_samples,
    regression_stage,
    student_stage,
    teacher_stage,
)
from sign_photos import archive, ramps
from torch import nn

from whet.errors import CheckpointError, OptionError
from whet.models.diffusion.unet import FrameUNet, UNetConfig, load_unet
from whet.workloads.signs_classifier import load_classifier, new_classifier
from whet.workloads.signs_data import ClipMaker

SMALL = UNetConfig(widths=(8, 16), embedding=16, groups=4)


def unet(seed=0):
    torch.manual_seed(seed)
    return FrameUNet(SMALL)


def teacher():
    return teacher_stage(unet(), ramps(), batch_size=4)


def student():
    return student_stage(unet(seed=1), ramps(), batch_size=4)


def regression():
    return regression_stage(unet(), ramps(), batch_size=4)


def classifier():
    torch.manual_seed(0)
    return classifier_stage(new_classifier(), ramps(), batch_size=4)


def weights(stage):
    return {f"{name}.{key}": x for name, module in stage.modules.items() for key, x in module.state_dict().items()}


@pytest.mark.parametrize("make", [teacher, student, regression, classifier])
def test_a_training_that_was_cut_off_ends_with_the_same_bits(tmp_path, make):
    limit = Limit(steps=5)
    whole = make()
    assert fit(whole, limit, tmp_path / "whole") == 5

    cut = make()
    loss = cut.loss

    def cut_off(step):
        if step == 3:
            raise KeyboardInterrupt
        return loss(step)

    cut.loss = cut_off
    with pytest.raises(KeyboardInterrupt):
        fit(cut, limit, tmp_path / "cut", save_every_s=0)
    resumed, steps = make(), []
    loss_again = resumed.loss
    resumed.loss = lambda step: (steps.append(step), loss_again(step))[1]
    assert fit(resumed, limit, tmp_path / "cut") == 5
    assert steps == [3, 4]
    for name, tensor in weights(whole).items():
        assert torch.equal(weights(resumed)[name], tensor), name
    assert any(not torch.equal(x, weights(make())[name]) for name, x in weights(whole).items())


def mean_loss(stage, steps):
    with torch.no_grad():
        return sum(stage.loss(step) for step in steps) / len(steps)


@pytest.mark.slow
@pytest.mark.parametrize(("make", "share"), [(teacher, 0.8), (regression, 0.5), (classifier, 0.99)])
def test_training_lowers_the_loss_of_samples_to_come(tmp_path, make, share):
    stage, later = make(), range(1000, 1010)
    stage.learning_rate, stage.warmup = 4e-3, 5
    before = mean_loss(stage, later)
    fit(stage, Limit(steps=60), tmp_path)
    assert mean_loss(stage, later) < share * before


@pytest.mark.slow
def test_distillation_lowers_the_loss_and_leaves_the_teacher_alone(tmp_path):
    """The teacher is trained first, since a new network's frames do not depend on the timestep."""
    first = teacher()
    first.learning_rate, first.warmup = 4e-3, 5
    fit(first, Limit(steps=60), tmp_path)
    taught = first.modules["model"]
    kept = {name: x.clone() for name, x in taught.state_dict().items()}
    stage, later = student_stage(taught, ramps(), batch_size=4), range(1000, 1010)
    stage.learning_rate, stage.warmup = 2e-3, 5
    before = mean_loss(stage, later)
    fit(stage, Limit(steps=40), tmp_path)
    assert mean_loss(stage, later) < before
    for name, tensor in kept.items():
        assert torch.equal(stage.modules["teacher"].state_dict()[name], tensor)
        assert torch.equal(taught.state_dict()[name], tensor)


def test_samples_are_as_the_recipe_says():
    samples = draw_samples(ClipMaker(ramps()), 400, SMALL.null_digit, torch.Generator().manual_seed(0))
    assert samples.frames_BCHW.shape == samples.previous_BCHW.shape == (400, 3, 64, 64)
    assert samples.grey_BCHW.shape == (400, 1, 16, 16)
    has_previous = samples.previous_BCHW.flatten(1).any(1)
    assert 0.1 < float((~has_previous).float().mean()) < 0.2
    assert 0.06 < float((samples.digits_B == SMALL.null_digit).float().mean()) < 0.14
    assert samples.digits_B.max() == SMALL.null_digit
    error = (samples.previous_BCHW - samples.frames_BCHW)[has_previous].flatten(1)
    assert 0.3 < float(error.std(1).mean()) < 0.4  # levels from 0 to 0.7, and a little motion
    assert error.std(1).max() < 0.75


def test_the_seed_and_the_step_choose_the_samples():
    one, other = teacher_stage(unet(), ramps(), batch_size=2), teacher_stage(unet(), ramps(), batch_size=2, seed=1)
    assert one.loss(0) == one.loss(0)
    assert one.loss(0) != one.loss(1)
    assert one.loss(0) != other.loss(0)


@pytest.mark.parametrize("damage", [b"", b"no state", "cut"])
def test_damaged_state_files_are_refused(tmp_path, damage):
    fit(teacher(), Limit(steps=1), tmp_path)
    path = tmp_path / "teacher.pt"
    path.write_bytes(path.read_bytes()[:5000] if damage == "cut" else damage)
    with pytest.raises(CheckpointError, match="remove it to begin anew"):
        fit(teacher(), Limit(steps=1), tmp_path)


def test_state_files_of_other_settings_or_networks_are_refused(tmp_path):
    fit(teacher(), Limit(steps=1), tmp_path)
    with pytest.raises(CheckpointError, match=r"batch 4, .* now batch 2"):
        fit(teacher_stage(unet(), ramps(), batch_size=2), Limit(steps=1), tmp_path)
    other = FrameUNet(UNetConfig(widths=(8, 8), embedding=16, groups=4))
    with pytest.raises(CheckpointError, match="cannot be read"):
        fit(teacher_stage(other, ramps(), batch_size=4), Limit(steps=1), tmp_path)


def test_no_pickle_runs(tmp_path):
    fit(teacher(), Limit(steps=1), tmp_path)
    torch.save({"settings": Evil(tmp_path / "made")}, tmp_path / "teacher.pt")
    with pytest.raises(CheckpointError):
        fit(teacher(), Limit(steps=1), tmp_path)
    assert not (tmp_path / "made").exists()


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (type(self.path).touch, (self.path,))


def test_a_stage_that_ended_goes_on_with_a_larger_limit(tmp_path, capsys):
    assert fit(teacher(), Limit(steps=2), tmp_path) == 2
    assert fit(teacher(), Limit(steps=2), tmp_path) == 2
    assert fit(teacher(), Limit(steps=3), tmp_path) == 3
    said = capsys.readouterr().out
    assert "teacher: goes on after step 2" in said
    assert "teacher: step 3, 12 samples, loss " in said
    assert "100% done" in said


def test_time_ends_a_stage_and_lowers_the_rate(tmp_path, monkeypatch):
    """Each step takes a second on this clock. The rate rises for two steps, and then falls as a cosine of the time."""
    clock = iter(range(1000))
    monkeypatch.setattr("benchmarks.built_in_weights.resumable.time.perf_counter", lambda: float(next(clock)))
    model, rates = nn.Linear(1, 1), []

    def after(step):
        rates.append(optimizers[0].param_groups[0]["lr"])

    optimizers = []
    adam = torch.optim.AdamW
    monkeypatch.setattr(torch.optim, "AdamW", lambda *a, **k: optimizers.append(adam(*a, **k)) or optimizers[0])
    stage = Stage(
        name="one",
        modules={"model": model},
        learner="model",
        loss=lambda step: model(torch.ones(1, 1)).square().sum(),
        batch_size=1,
        learning_rate=1.0,
        after_step=after,
        warmup=2,
    )
    assert fit(stage, Limit(minutes=0.1), tmp_path) == 6
    wanted = [0.5, *(0.05 + 0.475 * (1 + math.cos(math.pi * second / 6)) for second in range(1, 6))]
    assert rates == pytest.approx(wanted)


def test_limits():
    assert Limit(minutes=1).progress(30, 1000) == 0.5
    assert Limit(minutes=1, steps=100).progress(30, 80) == 0.8
    assert Limit(steps=10).progress(0, 20) == 1
    for wrong in ({}, {"minutes": 0}, {"steps": -1}, {"minutes": math.nan}, {"minutes": math.inf}):
        with pytest.raises(OptionError):
            Limit(**wrong)


def test_average_is_the_weighted_mean():
    mean, model = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    nn.init.constant_(model.weight, 3.0)
    model.running_mean.fill_(5.0)
    average(mean, model, 0.75)
    assert mean.weight.tolist() == [1.5, 1.5]
    assert mean.running_mean.tolist() == [5.0, 5.0]


@pytest.fixture
def signs(tmp_path):
    """Write an archive of four people, each of whom shows ten grey photos."""
    entries = [(f"Dataset/{n % 10}/IMG_{n + 100}.JPG", 40 + 2 * n) for n in range(40)]
    return archive(tmp_path / "signs.tar", entries)


def test_all_stages_from_the_command_line(tmp_path, capsys, signs):
    out, run = tmp_path / "out", tmp_path / "run"
    given = ["signs-stream", "--data", signs, "--out", out, "--run", run, "--steps", 1, "--batch", 1, "--photos", 1]
    assert main([*map(str, given), "--regression"]) == 0
    said = capsys.readouterr().out
    ways = ["true frames", "bicubic", "regression, one pass", "teacher, 20 steps"]
    ways += ["distilled, 1 step", "distilled, 2 steps", "distilled, 4 steps"]
    found = json.loads((run / "quality.json").read_text())
    assert sorted(found) == sorted(ways)
    assert all(way in said for way in ways)
    assert found["true frames"]["psnr_db"] is None
    assert all(math.isfinite(found[way]["psnr_db"]) for way in ways[1:])
    load_classifier(out)
    for name in ("signs-stream", "signs-stream-teacher", "signs-stream-regression"):
        assert load_unet(out / name).config == UNetConfig()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--distil-minutes", "0"], "minutes must be above 0"),
        (["--steps", "0"], "steps must be above 0"),
        (["--batch", "0"], "--batch, --threads and --photos take numbers from 1"),
        (["--data", "nowhere.tar"], "nowhere.tar cannot be read"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_trained(tmp_path, capsys, signs, wrong, said):
    given = ["signs-stream", "--data", str(signs), "--out", str(tmp_path / "out"), "--run", str(tmp_path / "run")]
    assert main([*given, *wrong]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.glob("run/*.pt"))
