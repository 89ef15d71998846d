"""whet.prepare in the user's own loop: a plain one, accelerate's, Lightning's two, and transformers' Trainer."""

import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from library_loops import HALF, LOOPS, NUM_STEPS, LanguageModel, falling, quietly
from tiny_training import TinyLM, adamw, loss_of, tiny_workload
from torch import nn

import whet
from whet.core.recipe import Recipe, Step
from whet.errors import OptionError, RecipeError
from whet.measure.machine import Machine, describe
from whet.techniques.mechanisms.loss_scale import loss_scale_of

EXACT = ("chunked_loss", "checkpointing", "fused_optimizer")
ROUNDED = (*EXACT, "autocast")


def recipe_of(*names: str) -> Recipe:
    return Recipe(kind="training", steps=tuple(Step(technique=name) for name in names))


@pytest.mark.parametrize("name", LOOPS)
def test_a_prepared_loop_trains_as_before(name: str, tmp_path: Path) -> None:
    """Losses, schedules and the model itself are those of the library alone; checkpoints load either way."""
    loop, recipe = LOOPS[name], recipe_of(*EXACT)
    alone = quietly(loop, None, tmp_path / "alone")
    ran = quietly(loop, recipe, tmp_path / "whet")
    assert len(alone.losses) == NUM_STEPS
    assert ran.losses == pytest.approx(alone.losses, rel=1e-5)
    assert ran.rates == alone.rates
    assert len(set(ran.rates)) == NUM_STEPS
    assert type(ran.model).__name__ == type(alone.model).__name__
    assert isinstance(ran.model, TinyLM)
    assert ran.model.state_dict().keys() == alone.model.state_dict().keys()
    assert [key for key, _ in ran.model.named_parameters()] == [key for key, _ in alone.model.named_parameters()]

    ends = []
    for first, second in ((None, None), (None, recipe), (recipe, None)):
        directory = tmp_path / f"{first} then {second}"
        quietly(loop, first, directory, 0, HALF)
        ends.append(quietly(loop, second, directory, HALF, NUM_STEPS))
    assert ends[0].rates[:HALF] == alone.rates[HALF:]
    for went_on in ends[1:]:
        assert went_on.losses == pytest.approx(ends[0].losses, rel=1e-5)
        assert went_on.rates == ends[0].rates


@pytest.mark.parametrize("name", LOOPS)
def test_a_rounded_recipe_in_each_loop(name: str, tmp_path: Path) -> None:
    if not describe().computes_bfloat16("cpu"):
        pytest.skip("this processor does not multiply bfloat16")
    alone = quietly(LOOPS[name], None, tmp_path / "alone")
    ran = quietly(LOOPS[name], recipe_of(*ROUNDED), tmp_path / "whet")
    assert ran.losses == pytest.approx(alone.losses, rel=1e-2)
    assert ran.losses != alone.losses, "autocast had no effect"
    assert ran.rates == alone.rates


@pytest.mark.parametrize("name", LOOPS)
def test_float16_in_each_loop(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of four steps overflows: it is skipped, and the schedule steps all the same."""
    monkeypatch.setattr(Machine, "computes_float16", lambda *_: True)
    alone = quietly(LOOPS[name], None, tmp_path / "alone")
    options = {"init_scale": 2.0**20, "backoff_factor": 2.0**-8}
    steps = (Step(technique="checkpointing"), Step(technique="autocast_fp16", options=options))
    ran = quietly(LOOPS[name], Recipe(kind="training", steps=steps), tmp_path / "whet")
    scale = loss_scale_of(ran.model)
    assert scale is not None
    assert scale.num_skipped == 1
    assert float(scale.scale) == 2.0**12
    assert ran.losses == pytest.approx(alone.losses, rel=2e-2)
    assert ran.rates == alone.rates


@pytest.mark.parametrize("name", ["plain", "accelerate", "fabric"])
def test_parts_of_a_batch_in_the_users_own_loop(name: str, tmp_path: Path) -> None:
    alone = quietly(LOOPS[name], None, tmp_path / "alone")
    ran = quietly(LOOPS[name], recipe_of(*EXACT, "accumulation"), tmp_path / "whet")
    assert ran.losses == pytest.approx(alone.losses, rel=1e-5)
    assert ran.rates == alone.rates


def test_trainers_that_own_the_loop_refuse_parts(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="the loop computes whole ones"):
        quietly(LOOPS["lightning"], recipe_of("accumulation"), tmp_path / "lightning")
    with pytest.raises(RecipeError, match="multiply gradient_accumulation_steps by it"):
        quietly(LOOPS["transformers"], recipe_of("accumulation"), tmp_path / "transformers")


def parts() -> tuple[nn.Module, torch.optim.Optimizer, list[Any]]:
    workload = tiny_workload(clip_norm=None)
    return workload.model, workload.optimizer(workload.model.parameters()), list(workload.batches)


def test_hooks_and_modes_stay() -> None:
    model, optimizer, batches = parts()
    seen: list[str] = []
    model.register_forward_hook(lambda *_: seen.append("forward"))
    model.blocks[0].register_forward_pre_hook(lambda *_: seen.append("block"))  # type: ignore[index,union-attr]
    optimizer.register_step_post_hook(lambda *_: seen.append("step"))
    whet.prepare(model, optimizer, batches, recipe=recipe_of(*EXACT))
    loss_of(model, batches[0]).backward()
    optimizer.step()
    assert seen == ["block", "forward", "step"]
    assert not model.eval().training
    assert all(part.training for part in model.train().modules())


def test_a_second_call_with_the_same_recipe_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    model, optimizer, batches = parts()
    recipe = recipe_of(*EXACT, "adafactor")
    recipe = Recipe(kind="training", steps=tuple(s for s in recipe if s.technique != "fused_optimizer"))
    _, first, _ = whet.prepare(model, optimizer, batches, recipe=recipe)
    kinds = [type(part) for part in model.modules()]
    with caplog.at_level(logging.INFO, logger="whet"):
        for given in (first, optimizer):
            again = whet.prepare(model, given, batches, recipe=recipe)
            assert again.optimizer is first
    assert caplog.text.count("prepared with this recipe already") == 2
    assert [type(part) for part in model.modules()] == kinds
    with pytest.raises(RecipeError, match="the model is prepared already, with chunked_loss"):
        whet.prepare(model, first, batches, recipe=recipe_of("checkpointing"))
    _, another, _ = whet.prepare(model, adamw(model.parameters()), batches, recipe=recipe)
    assert type(another) is torch.optim.Adafactor
    assert another is not first


def test_what_is_so_already_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, batches = parts()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: pytest.fail("the threads are so already"))
    threads = Step(technique="threads", options={"num_threads": torch.get_num_threads()})
    recipe = Recipe(kind="training", steps=(Step(technique="fused_optimizer"), threads))
    assert whet.prepare(model, optimizer, batches, recipe=recipe).optimizer is optimizer


def test_an_optimiser_in_backward_refuses_a_second_backward_and_a_second_optimiser() -> None:
    model, optimizer, batches = parts()
    recipe = recipe_of("optimizer_in_backward")
    whet.prepare(model, optimizer, batches, recipe=recipe)
    loss_of(model, batches[0]).backward()
    with pytest.raises(RecipeError, match="calls backward twice before it sets gradients to zero"):
        loss_of(model, batches[1]).backward()
    with pytest.raises(RecipeError, match="its first optimiser still updates it"):
        whet.prepare(model, adamw(model.parameters()), batches, recipe=recipe)


@pytest.mark.parametrize("name", ["optimizer_in_backward", "adafactor"])
def test_a_schedule_of_before_goes_on_after_a_checkpoint_is_loaded(name: str) -> None:
    model, optimizer, batches = parts()
    schedule = falling(optimizer)
    _, changed, _ = whet.prepare(model, optimizer, batches, recipe=recipe_of(name))
    for batch in batches[:2]:
        changed.zero_grad()
        loss_of(model, batch).backward()
        changed.step()
        schedule.step()
    changed.load_state_dict(changed.state_dict())
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    before = [p.detach().clone() for p in model.parameters()]
    changed.zero_grad()
    loss_of(model, batches[2]).backward()
    changed.step()
    for old, new in zip(before, model.parameters(), strict=True):
        torch.testing.assert_close(old, new, rtol=0, atol=0)


def test_the_state_of_another_algorithm_is_refused() -> None:
    saved = {}
    for name in ("fused_optimizer", "adafactor"):
        model, optimizer, batches = parts()
        _, optimizer, _ = whet.prepare(model, optimizer, batches, recipe=recipe_of(name))
        empty = optimizer.state_dict()
        loss_of(model, batches[0]).backward()
        optimizer.step()
        saved[name] = optimizer.state_dict(), empty, optimizer
    for mine, other in (("fused_optimizer", "adafactor"), ("adafactor", "fused_optimizer")):
        state, _, optimizer = saved[mine]
        before = [p.detach().clone() for one in optimizer.state.values() for p in one.values()]
        # Adafactor's settings of before its first step hold AdamW's too, so that nothing is wrong with them.
        for foreign in saved[other][: 2 if mine == "adafactor" else 1]:
            with pytest.raises(RecipeError, match="this checkpoint is of another optimiser than"):
                optimizer.load_state_dict(foreign)
        after = [p for one in optimizer.state.values() for p in one.values()]
        for old, new in zip(before, after, strict=True):
            torch.testing.assert_close(old, new, rtol=0, atol=0)
        optimizer.load_state_dict(state)
    plain = torch.optim.AdamW(parts()[0].parameters(), fused=False)
    saved["fused_optimizer"][2].load_state_dict(plain.state_dict())
    assert all(group["fused"] for group in saved["fused_optimizer"][2].param_groups), "a checkpoint undoes no recipe"


def test_wrapped_parts_are_refused() -> None:
    from accelerate import Accelerator

    model, optimizer, batches = parts()
    _, wrapped = Accelerator(cpu=True).prepare(model, optimizer)
    with pytest.raises(RecipeError, match=r"AcceleratedOptimizer is a wrapper already; call whet.prepare before acc"):
        whet.prepare(model, wrapped, batches, recipe=recipe_of(*EXACT))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from lightning import Fabric, LightningModule
    model, optimizer, batches = parts()
    fabric = Fabric(accelerator="cpu", devices=1)
    wrapped_model, wrapped = fabric.setup(model, optimizer)
    for given in ((wrapped_model, optimizer), (model, wrapped)):
        with pytest.raises(RecipeError, match=r"is a wrapper already; call whet.prepare before fabric.setup"):
            whet.prepare(*given, batches, recipe=recipe_of(*EXACT))

    class NoForward(LightningModule):
        pass

    with pytest.raises(RecipeError, match="NoForward has no forward that could be changed"):
        whet.prepare(NoForward(), optimizer, batches, recipe=recipe_of(*EXACT))


def test_a_trainer_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    def made(**settings: Any) -> Any:
        args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[], **settings)
        return Trainer(model=LanguageModel(), args=args, train_dataset=[])

    trainer = made()
    with pytest.raises(RecipeError, match="optimizer_in_backward does not bear this Trainer: it takes the norm"):
        whet.prepare_trainer(trainer, recipe=recipe_of("optimizer_in_backward"))
    with pytest.raises(RecipeError, match="channels_last does not apply here"):
        whet.prepare_trainer(trainer, recipe=recipe_of("channels_last"))
    assert trainer.optimizer is None
    assert type(trainer.model) is LanguageModel
    with pytest.raises(OptionError, match="takes a Trainer of transformers, not TinyLM"):
        whet.prepare_trainer(TinyLM(), recipe=recipe_of(*EXACT))
