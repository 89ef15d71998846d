"""Pruning as a technique of whet tune: it needs a training, keeps what it trained, and saves a smaller model."""

import copy
import dataclasses
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

import whet
from whet import Quality, TrainingWorkload, Workload
from whet.core.artefact import load
from whet.core.recipe import Step
from whet.core.workload import ExaminedWorkload, examine
from whet.errors import OptionError, TargetError
from whet.files import size_bytes
from whet.measure.machine import describe
from whet.models.decoder.config import DecoderConfig
from whet.models.decoder.fresh import fresh_decoder
from whet.techniques import TABLE, pruned
from whet.techniques.technique import Applies, Candidate, NotApplicable
from whet.tuner.batch import make, with_free_batch
from whet.tuner.build import build
from whet.tuner.least_time import recipe_time_s
from whet.tuner.recipe_replay import ReplayRequest, replay_recipe
from whet.workloads import resolve
from whet.workloads.target import resolve_any
from whet.workloads.target_name import TargetName, with_training

STEP = Step(technique="prune_decoder", options={"keep": 0.6, "steps": 5})


def loss(module: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(module(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def workload() -> Workload:
    """A decoder that counts upwards, and the training that it came from."""
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128}
    config = DecoderConfig.model_validate({"vocab_size": 16, "hidden_size": 32, **sizes})
    model = fresh_decoder(config, torch.Generator().manual_seed(0)).eval()
    rows = [
        (torch.arange(12) + torch.randint(0, 16, (8, 1), generator=torch.Generator().manual_seed(i))) % 16
        for i in range(8)
    ]
    training = TrainingWorkload(
        model=copy.deepcopy(model),
        loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        batches=rows,
        name="counting",
    )
    quality = Quality("loss", lambda predict: float(loss(predict, rows[0])), higher_is_better=False)  # type: ignore[arg-type]
    return Workload(model=model, inputs=[rows[0]], quality=quality, training=training, name="counter")


def build_workload() -> Workload:
    return workload()


def build_training() -> TrainingWorkload:
    return workload().open_training()


@pytest.fixture
def examined(tmp_path: Path) -> ExaminedWorkload:
    return dataclasses.replace(examine(workload()), kept_in=tmp_path / "kept")


def test_what_was_trained_is_kept_for_other_recipes(
    examined: ExaminedWorkload, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build(examined, [STEP])
    assert len(list(examined.kept_in.iterdir())) == 1  # type: ignore[union-attr]

    def never(*_: object) -> None:
        raise AssertionError("it was trained again")

    monkeypatch.setattr(pruned, "fine_tune", never)
    again = build(examined, [STEP, Step(technique="bf16")])
    batch = examined.flat_inputs[0]
    assert torch.equal(first.call(*batch)[0], build(examined, [STEP]).call(*batch)[0])
    assert (again.call(*batch)[0] - first.call(*batch)[0]).abs().max() < 0.1
    with pytest.raises(AssertionError, match="trained again"):
        build(examined, [Step(technique="prune_decoder", options={"keep": 0.6, "steps": 6})])
    with pytest.raises(AssertionError, match="trained again"):  # another machine, or no search
        build(dataclasses.replace(examined, kept_in=None), [STEP])


def test_the_artefact_is_smaller_and_has_learnt(examined: ExaminedWorkload, tmp_path: Path) -> None:
    Candidate.original(examined).save(tmp_path / "original")
    candidate = build(examined, [Step(technique="prune_decoder", options={"keep": 0.6, "steps": 40, "distil": 0.0})])
    candidate.save(tmp_path / "small")
    assert size_bytes(tmp_path / "small") < 0.8 * size_bytes(tmp_path / "original")
    ids = examined.flat_inputs[0][0]
    logits = load(tmp_path / "small").run(ids)[0]
    assert torch.equal(logits.argmax(-1), (ids + 1) % 16), "it counts, as the training taught it"
    assert any("million operations a call" in note for note in candidate.notes)


def test_a_smaller_model_takes_any_batch(tmp_path: Path) -> None:
    """It answers other sizes as it answers its own, not as the original does."""
    known, batch = with_free_batch(examine(workload()))
    step = Step(technique="prune_decoder", options={"keep": 0.6, "steps": 40, "distil": 0.0})
    made = make(known, [step], tmp_path / "artefact", batch)
    assert made.fixed_batch is None, made.notes
    ids = (torch.arange(12) + torch.tensor([[3], [7]])) % 16
    assert torch.equal(made.artefact.run(ids)[0].argmax(-1), (ids + 1) % 16)


def test_without_a_training_it_does_not_apply() -> None:
    bare = examine(dataclasses.replace(workload(), training=None))
    found = TABLE["prune_decoder"].check(bare, describe(), TABLE["prune_decoder"].options())
    assert isinstance(found, NotApplicable) and "--training TARGET" in found.reason
    with pytest.raises(TargetError, match="no training goes with this model"):
        build(bare, [STEP])
    other = dataclasses.replace(build_training(), model=torch.nn.Linear(3, 3), name="other")
    found = TABLE["prune_decoder"].check(
        examine(dataclasses.replace(workload(), training=other)), describe(), TABLE["prune_decoder"].options()
    )
    assert isinstance(found, NotApplicable) and "other trains another model" in found.reason
    verdict = TABLE["prune_channels"].check(examine(workload()), describe(), TABLE["prune_channels"].options())
    assert isinstance(verdict, NotApplicable) and "prune_decoder cuts whole" in verdict.reason


@pytest.mark.parametrize(
    "bad", [{"keep": 1.0}, {"steps": 0}, {"rate": 0.0}, {"distil": 2.0}, {"importance": "luck"}, {"what": "cells"}]
)
def test_options_out_of_range_are_refused(examined: ExaminedWorkload, bad: dict[str, object]) -> None:
    with pytest.raises(OptionError):
        build(examined, [Step(technique="prune_decoder", options=bad)])


@given(
    target=st.sampled_from(["digits-cnn", "hf:models/x?batch=3", "a.py:f?device=cpu&seq=4"]),
    training=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1),
)
def test_the_name_of_a_training_is_read_back(target: str, training: str) -> None:
    alone, both = TargetName.read(target), TargetName.read(with_training(target, training))
    assert (both.address, both.device, both.training) == (alone.address, alone.device, training)


def test_a_target_names_its_training() -> None:
    found = resolve("digits-cnn?training=digits-cnn-training")
    assert found.open_training().name == "digits-cnn-training"
    assert resolve("digits-cnn").training is None
    with pytest.raises(TargetError, match="here whet takes an InferenceWorkload"):
        resolve_any("digits-cnn-training?training=docs-gpt-training")
    with pytest.raises(TargetError, match="takes a TrainingWorkload"):
        resolve("digits-cnn?training=digits-cnn").open_training()
    with pytest.raises(OptionError, match="names its training already"):
        with_training("digits-cnn?training=x", "y")
    with pytest.raises(TargetError, match="no target is named"):
        whet.tune("digits-cnn", training="digits-cnn-trainin")
    with pytest.raises(OptionError, match="this target is a training itself"):
        whet.tune(build_training(), training="docs-gpt-training")


def test_fewer_operations_take_less_time_at_the_limits() -> None:
    from whet.measure.machine import Limits
    from whet.profiling.model import Profile
    from whet.profiling.model.layers import LayerCost

    layer = LayerCost("linear", "Linear", 1, 1.0, flops=10**9, weight_bytes=4, activation_bytes=4, num_operators=1)
    limits = Limits(read_bandwidth=1e12, gemm={"float32": 1e9, "int8": 8e9})
    profile = Profile(total_s=1.0, layers=(layer,), dtype="float32")
    assert recipe_time_s(profile, limits, [STEP]) == pytest.approx(0.6, rel=1e-3)
    both = [STEP, Step(technique="int8_dynamic")]
    assert recipe_time_s(profile, limits, both) == pytest.approx(0.6 / 8, rel=1e-3)


def test_apply_trains_and_saves_the_same_recipe(tmp_path: Path) -> None:
    target = with_training(f"{__file__}:build_workload", f"{__file__}:build_training")
    request = ReplayRequest(target=target, steps=(STEP,), directory=tmp_path / "artefact", max_drop=1.0, force=True)
    path = list(sys.path)
    try:
        found = replay_recipe(request)
    finally:
        sys.path[:] = path
    assert found.steps == (STEP,) and not found.dropped
    assert found.size_bytes < size_bytes(Candidate.original(examine(workload())).save(tmp_path / "original"))
    applies = TABLE["prune_decoder"].check(examine(workload()), describe(), TABLE["prune_decoder"].options())
    assert isinstance(applies, Applies)
