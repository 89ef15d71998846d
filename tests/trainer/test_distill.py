"""whet train with a teacher: what it learns, how it goes on, and which teachers are refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_distillation import expected
from tiny_run import config, gpt2, tables, teacher_model, trained

from processors import NEEDS_BFLOAT16
from whet.core.recipe import Recipe, Step
from whet.errors import OptionError, RecipeError
from whet.models.decoder import load_decoder
from whet.techniques.mechanisms.distillation import MAPS, even_layers, hidden_loss
from whet.trainer.setup import set_up

HIDDEN = {"hidden_weight": 0.5}


def distill(teacher: Path, **changes: Any) -> dict[str, Any]:
    return {"teacher": str(teacher), "temperature": 2.0, "alpha": 0.7, **changes}


def packed(teacher: Path) -> dict[str, Any]:
    """Return the data of packed rows; the teacher's tokenizer knows the spaces that divide them."""
    return {"pack": True, "separator": " ", "tokenizer": str(teacher)}


@pytest.mark.parametrize("kind", ["whet's", "transformers'"])
def test_the_loss_is_the_one_by_hand(tmp_path: Path, kind: str) -> None:
    teacher = teacher_model(tmp_path)
    if kind == "transformers'":
        teacher = gpt2(tmp_path, teacher)
    setup = set_up(config(tmp_path, distill=distill(teacher)), lambda line: None)
    workload = setup.workload()
    batch = next(iter(workload.batches))
    assert setup.teacher is not None
    with torch.no_grad():
        ours = workload.model.eval()(batch["ids"]).flatten(0, 1)
        theirs = setup.teacher.model.logits(setup.teacher.model.module, batch["ids"], None, None).flatten(0, 1)
        wanted = expected(ours, theirs, batch["targets"].flatten(), 2.0, 0.7)
        torch.testing.assert_close(workload.loss(workload.model, batch).double(), wanted, rtol=1e-5, atol=1e-5)


def test_hidden_states_of_packed_rows_are_those_by_hand(tmp_path: Path) -> None:
    known = teacher_model(tmp_path)
    made = config(tmp_path, distill=distill(known, alpha=0.0, **HIDDEN), data=packed(known))
    setup = set_up(made, lambda line: None)
    workload, teacher = setup.workload(), setup.teacher
    assert teacher is not None and teacher.hidden is not None
    assert dict(teacher.hidden.layers) == even_layers(2, 4) == {0: 1, 1: 3}
    batch = next(iter(workload.batches))
    assert int(batch["documents"].max()) > 0 and bool((batch["targets"] == -100).any())
    states: dict[Any, torch.Tensor] = {}
    for name, module in (("student", workload.model), ("teacher", teacher.model.module)):
        for i, block in enumerate(module.layers):  # type: ignore[arg-type]
            block.register_forward_hook(lambda m, a, output, key=(name, i): states.__setitem__(key, output))
    with torch.no_grad():
        loss = workload.loss(workload.model, batch)
        maps = getattr(workload.model, MAPS)
        mapped = [states["student", i] @ maps[str(i)].weight.T for i in (0, 1)]
        keep = batch["targets"].flatten() != -100
        term = hidden_loss(mapped, [states["teacher", 1], states["teacher", 3]], keep)
        torch.testing.assert_close(loss, setup.model.loss(workload.model, batch) + 0.5 * term, rtol=1e-5, atol=1e-5)


def test_a_teacher_that_knows_the_text_helps(tmp_path: Path) -> None:
    teacher = trained(config(tmp_path, out=str(tmp_path / "t"), steps=150, optimizer={"lr": 2e-2})).model
    assert teacher is not None
    short: dict[str, Any] = {"steps": 60, "model": {"hidden_size": 16}}
    alone = trained(config(tmp_path, out=str(tmp_path / "a"), **short)).held_out_loss
    taught = trained(config(tmp_path, out=str(tmp_path / "b"), distill=distill(teacher), **short)).held_out_loss
    assert alone is not None and taught is not None
    assert taught < alone + 0.1, "the score is the data's own, without the teacher's term"


@pytest.mark.parametrize(
    "changes",
    [
        {"batch": {"micro_batch_size": 2}, "data": {"pack": True}},
        pytest.param({"recipe": (Step(technique="autocast"), Step(technique="fused_optimizer"))}, marks=NEEDS_BFLOAT16),
    ],
    ids=["packed and accumulated", "autocast"],
)
def test_it_goes_on_bit_for_bit_and_the_maps_are_not_exported(tmp_path: Path, changes: dict[str, Any]) -> None:
    if "recipe" in changes:
        recipe = tmp_path / "recipe.toml"
        Recipe(kind="training", steps=changes["recipe"]).write(recipe)
        changes = {"recipe": str(recipe)}
    teacher = teacher_model(tmp_path)
    changes = {**changes, "distill": distill(teacher, **HIDDEN)}
    if "data" in changes:
        changes["data"] = packed(teacher)
    whole = trained(config(tmp_path, out=str(tmp_path / "whole"), **changes))
    made = config(tmp_path, **changes)
    trained(made, stop_at=5)
    [saved] = list((tmp_path / "run" / "checkpoints").glob("step-*5"))
    names = {name for file in saved.glob("*.safetensors") for name in load_file(file)}
    assert any(MAPS in name for name in names) and not any("teacher" in name for name in names)
    resumed = trained(made, resume=True)
    assert whole.model is not None and resumed.model is not None
    files = [load_file(one.model / "model.safetensors") for one in (whole, resumed)]  # type: ignore[operator]
    assert files[0].keys() == files[1].keys() and not any(MAPS in name for name in files[0])
    for name, value in files[0].items():
        assert torch.equal(value, files[1][name]), name
    load_decoder(resumed.model)


def test_parts_of_a_batch_have_the_gradients_of_the_whole(tmp_path: Path) -> None:
    from whet.techniques.prepared_trainer import PreparedTrainer

    teacher = teacher_model(tmp_path)
    changes = {"data": packed(teacher), "distill": distill(teacher, **HIDDEN)}
    found = []
    for batch in ({}, {"micro_batch_size": 2}):
        setup = set_up(config(tmp_path, batch=batch, **changes), lambda line: None)
        trainer = PreparedTrainer(setup.workload(), setup.steps).trainer
        loss = trainer.compute(trainer.next_batches(), updates=False)
        found.append([loss, *(p.grad for p in trainer.model.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_another_teacher_does_not_go_on(tmp_path: Path) -> None:
    teacher = teacher_model(tmp_path)
    trained(config(tmp_path, distill=distill(teacher)), stop_at=4)
    with pytest.raises(OptionError, match=r"\[distill\] changed"):
        trained(config(tmp_path, distill=distill(teacher, alpha=0.2)), resume=True)
    with pytest.raises(OptionError, match=r"\[distill\] and the teacher changed"):
        trained(config(tmp_path), resume=True)
    shutil.rmtree(teacher)
    again = teacher_model(tmp_path, intermediate_size=80)
    with pytest.raises(OptionError, match="the teacher changed"):
        trained(config(tmp_path, distill=distill(again)), resume=True)


def test_what_does_not_fit_is_refused_before_a_step(tmp_path: Path) -> None:
    teacher = teacher_model(tmp_path)

    def refused(said: str, kind: type[Exception] = OptionError, **changes: Any) -> None:
        with pytest.raises(kind, match=said):
            set_up(config(tmp_path, **changes), lambda line: None)

    refused("the teacher knows .* tokens, and the model 500", distill=distill(teacher), model={"vocab_size": 500})
    refused("has no config.json", distill=distill(tmp_path / "nowhere"))
    refused("the model has 2 layers and the teacher 4", distill=distill(teacher, layers={"0": 4}, **HIDDEN))
    refused("set hidden_weight too", distill=distill(teacher, layers={"0": 1}))
    refused("temperature", distill=distill(teacher, temperature=0))
    refused(r"no key distill\.temprature; did you mean temperature", distill={**distill(teacher), "temprature": 1})
    Recipe(kind="training", steps=(Step(technique="compile"),)).write(tmp_path / "recipe.toml")
    refused("compile hides", RecipeError, distill=distill(teacher, **HIDDEN), recipe=str(tmp_path / "recipe.toml"))
    file = teacher / "tokenizer.json"
    described = json.loads(file.read_text())
    vocabulary = described["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    file.write_text(json.dumps(described))
    refused("to only one of the teacher's tokenizer and the data's", distill=distill(teacher))


def test_a_wide_window_needs_a_teacher_that_takes_it(tmp_path: Path) -> None:
    teacher = teacher_model(tmp_path, max_position_embeddings=16)
    with pytest.raises(OptionError, match="the teacher takes 16 tokens"):
        set_up(config(tmp_path, distill=distill(teacher)), lambda line: None)
    assert tables(tmp_path)["data"]["sequence_length"] == 32
