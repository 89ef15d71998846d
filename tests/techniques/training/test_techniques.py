"""The contract of every technique for training: it applies, trains the same, and survives a recipe."""

import copy
import importlib.util
import inspect
import io
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import (
    PackedLM,
    TinyLM,
    TinyNet,
    image_workload,
    loaded_workload,
    packed_workload,
    tiny_workload,
    trainer_with,
)
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import whet
from whet.core.recipe import Recipe, Step
from whet.core.workload import TrainingWorkload
from whet.core.workload.blocks import repeated_blocks
from whet.core.workload.training import Trainer
from whet.errors import RecipeError
from whet.measure.machine import Machine, describe
from whet.techniques.costs.step_profile import StepProfile, kind_of, profile_steps
from whet.techniques.mechanisms.blocks import head_of
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.prepared_trainer import updates_plainly
from whet.techniques.proof import gradients
from whet.techniques.proof.updates import prove_updates
from whet.techniques.technique import Applies, NotApplicable
from whet.techniques.training import TRAINING_TABLE
from whet.techniques.training_technique import Exactness

STEPS = 20
ON_IMAGES = {"channels_last"}
ON_PACKED_ROWS = {"document_attention"}
ON_LOADERS = {"loader", "prefetch"}  # they change the loader alone
BY_HAND = {"threads", "activation_budget", "set_to_none"}  # their own tests are below, or in a file of their own
# test_on_gpus.py, test_offload.py, test_aligned_layers.py
ON_GPUS = {"activation_offload", "optimizer_offload", "fp8", "cudnn_benchmark", "aligned_dimensions"}
NEEDS_BFLOAT16 = {"product_attention", "autocast", "bf16_parameters", "matmul_precision", "muon"}
COMPILES = {"compile", "adamw_8bit"}
HAS_LAMB = importlib.util.find_spec("pytorch_optimizer") is not None
MARKS = {
    "adamw_8bit": [pytest.mark.slow],
    "lamb": [pytest.mark.skipif(not HAS_LAMB, reason="pytorch-optimizer is not installed")],
}
NAMES = [pytest.param(name, marks=MARKS.get(name, [])) for name in TRAINING_TABLE if name not in BY_HAND | ON_GPUS]


def workload_for(name: str, **changes: Any) -> TrainingWorkload:
    if name == "optimizer_in_backward":
        changes = {"clip_norm": None, **changes}  # it needs each gradient by itself
    if name in ON_LOADERS:
        return loaded_workload(**changes)
    if name in ON_PACKED_ROWS:
        return packed_workload(**changes)
    return image_workload(**changes) if name in ON_IMAGES else tiny_workload(**changes)


def parts_of(workload: TrainingWorkload) -> Parts:
    return Parts(workload.model, workload.optimizer(workload.model.parameters()), workload.batches)


@pytest.fixture(autouse=True)
def plain_malloc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the malloc of this process as it is, since other tests look at what freed memory does."""
    monkeypatch.setattr("whet.techniques.training.allocator.keep_all_memory", lambda: None)


@pytest.fixture(autouse=True)
def own_precision() -> Iterator[None]:
    """Give the process its precision of products back."""
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("name", NAMES)
def test_contract(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A technique applies, predicts, proves itself over 20 steps, and comes back from a recipe on disk."""
    monkeypatch.setattr(Machine, "computes_float16", lambda *_: True)  # slowly, on most processors
    technique = TRAINING_TABLE[name]
    options = technique.options()
    verdict = technique.check(parts_of(workload_for(name)), describe(), options)
    if isinstance(verdict, NotApplicable) and name in NEEDS_BFLOAT16:
        pytest.skip(verdict.reason)  # a processor without bfloat16
    assert isinstance(verdict, Applies)
    assert verdict.detail
    assert set(technique.space) == set(vars(options))

    recipe = Recipe(steps=(Step(technique=name),), kind="training")
    recipe.write(tmp_path / "recipe.toml")
    workload, original = workload_for(name), workload_for(name)
    trainer = trainer_with(workload, *Recipe.read(tmp_path / "recipe.toml"))
    if technique.exactness is not Exactness.OTHER:
        batches = list(original.batches)[:2]
        original.model.train()
        own = gradients.gradients_of(original.model, original.loss, batches, seed=0)
        reference = gradients.reference_gradients(original.model, original.loss, batches, seed=0)
        found = gradients.gradients_of(trainer.model, workload.loss, batches, seed=0)
        proof = gradients.judged(found, own, reference, technique.exactness)
        assert proof.is_same, proof.words
        updates = prove_updates(workload, trainer)
        assert updates.is_same is True, updates.words
    while len(trainer.losses) < STEPS:
        trainer.step()
    plain = Trainer(original)
    for _ in range(STEPS):
        plain.step()
    mine, theirs = torch.stack(trainer.losses), torch.stack(plain.losses)
    tolerance = {Exactness.EXACT: 1e-4, Exactness.ROUNDED: 1e-2, Exactness.OTHER: 5e-2}[technique.exactness]
    torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=0)


@pytest.mark.parametrize("name", [one for one in NAMES if one.values[0] not in COMPILES])
def test_what_comes_back_behaves_as_what_went_in(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "computes_float16", lambda *_: True)
    workload = workload_for(name)
    model, optimizer = workload.model, workload.optimizer(workload.model.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))
    kind = TinyNet if name in ON_IMAGES else PackedLM if name in ON_PACKED_ROWS else TinyLM
    before = {parameter: id(p) for parameter, p in model.named_parameters()}
    saved = copy.deepcopy(model.state_dict())
    Recipe(steps=(Step(technique=name),), kind="training").write(tmp_path / "recipe.toml")
    if name in NEEDS_BFLOAT16 and not describe().computes_bfloat16("cpu"):
        pytest.skip("this processor does not multiply bfloat16")
    prepared, new_optimizer, loader = whet.prepare(model, optimizer, workload.batches, recipe=tmp_path)
    assert prepared is model
    assert isinstance(model, kind)
    assert type(model).__name__ == kind.__name__
    assert {parameter: id(p) for parameter, p in model.named_parameters()} == before
    assert model.state_dict().keys() == saved.keys()
    assert isinstance(loader, type(workload.batches))
    assert (loader is workload.batches) == (name not in ON_LOADERS)
    for batch in loader:
        new_optimizer.zero_grad()
        for part in whet.micro_batches(model, batch):
            workload.loss(model, part).backward()
        new_optimizer.step()
        schedule.step()
    assert [float(group["lr"]) for group in new_optimizer.param_groups] == pytest.approx([1e-3 / 5])
    assert any(not torch.equal(value, saved[key]) for key, value in model.state_dict().items())
    model.load_state_dict(saved)  # a checkpoint of before
    fresh = kind()
    fresh.load_state_dict(model.state_dict())  # and the other way round
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for p in twin.parameters():
            p.zero_()
    assert any(bool(p.any()) for p in model.parameters()), "a copy has parameters of its own"
    assert model.eval() is model
    assert not model.training
    file = io.BytesIO()
    pickle.dump(model, file)
    file.seek(0)
    assert type(pickle.load(file)) is kind


def test_recipes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    workload = tiny_workload()
    parts = parts_of(workload)
    with pytest.raises(RecipeError, match="for calls of a model"):
        whet.prepare(*parts, recipe=Recipe(steps=(Step(technique="bf16"),)))
    with pytest.raises(RecipeError, match="no technique 'bf16'"):
        whet.prepare(*parts, recipe=Recipe(kind="training", steps=(Step(technique="bf16"),)))
    with pytest.raises(RecipeError, match="channels_last does not apply here: the model has no convolutions"):
        whet.prepare(*parts, recipe=Recipe(kind="training", steps=(Step(technique="channels_last"),)))
    with pytest.raises(RecipeError, match="its options are: every, keep"):
        step = Step(technique="checkpointing", options={"often": 2})
        whet.prepare(*parts, recipe=Recipe(kind="training", steps=(step,)))
    assert type(workload.model) is TinyLM, "nothing was changed"


def test_threads_are_set_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    technique = TRAINING_TABLE["threads"]
    seen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", seen.append)
    parts = parts_of(tiny_workload())
    now = torch.get_num_threads()
    assert isinstance(technique.check(parts, describe(), technique.options(num_threads=now)), NotApplicable)
    assert isinstance(technique.check(parts, describe(), technique.options(num_threads=10**6)), NotApplicable)
    technique.apply(parts, technique.options(num_threads=1))
    assert seen == [1]


def test_the_profile_of_a_step_adds_up() -> None:
    trainer = Trainer(tiny_workload())
    trainer.step()
    profile = profile_steps(trainer)
    parts = (profile.products_s, profile.attention_s, profile.loss_s, profile.other_s)
    assert sum(parts) + profile.data_s + profile.optimizer_s == pytest.approx(profile.total_s, rel=1e-6)
    assert profile.flops > 6 * 4 * 16 * (24 * 1100)  # forward and backward of the last layer alone
    assert profile.num_parameters == sum(p.numel() for p in trainer.model.parameters())
    assert profile.bound(loss_s=0.0) == pytest.approx(profile.total_s / (profile.total_s - profile.loss_s))
    assert StepProfile.model_validate_json(profile.model_dump_json()) == profile


@pytest.mark.parametrize(
    ("operator", "kind"),
    [
        ("aten::mm", "products_s"),
        ("aten::addmm", "products_s"),
        ("aten::mkldnn_convolution", "products_s"),
        ("aten::convolution_backward", "products_s"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "attention_s"),
        ("aten::_log_softmax_backward_data", "loss_s"),
        ("aten::nll_loss_forward", "loss_s"),
        ("aten::mul", "other_s"),
        ("aten::mmul_like", "other_s"),
        ("aten::copy_", "other_s"),
    ],
)
def test_kinds_of_operators(operator: str, kind: str) -> None:
    assert kind_of(operator) == kind


def test_every_technique_has_a_whole_card() -> None:
    for technique in TRAINING_TABLE.values():
        assert technique.card is not None
        for heading in ("What  ", "When it helps", "When it hurts", "Numerics", "Composes", "Source"):
            assert heading in technique.card, (technique.name, heading)


def test_blocks_and_head() -> None:
    model = TinyLM()
    assert repeated_blocks(model) == list(model.blocks)
    assert head_of(model) is model.head
    assert repeated_blocks(TinyNet()) == []
    assert head_of(TinyNet()) is None
    nested = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    assert len(repeated_blocks(nested)) == 2


def test_libraries_see_the_signature_of_the_first_forward() -> None:
    """transformers' Trainer drops the columns that forward does not name."""
    workload = tiny_workload()
    before = inspect.signature(workload.model.forward)
    trainer_with(workload, Step(technique="autocast"))
    assert inspect.signature(workload.model.forward) == before


def test_blocks_with_batch_norms_are_not_computed_twice() -> None:
    blocks = nn.Sequential(*(nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)) for _ in range(3)))
    technique = TRAINING_TABLE["checkpointing"]
    parts = Parts(blocks, torch.optim.SGD(blocks.parameters()), [])
    verdict = technique.check(parts, describe(), technique.options())
    assert isinstance(verdict, NotApplicable)
    assert "statistics twice" in verdict.reason


def test_updates_in_backward_are_refused_where_gradients_are_clipped_or_accumulated() -> None:
    assert not updates_plainly(tiny_workload())
    assert not updates_plainly(tiny_workload(clip_norm=None, num_accumulated=2))
    assert updates_plainly(tiny_workload(clip_norm=None))
    assert TRAINING_TABLE["optimizer_in_backward"].updates_early


@pytest.mark.parametrize("keep", ["inputs", "products"])
def test_checkpointed_blocks_draw_the_same_dropout_again(keep: str) -> None:
    """Gradients are those of the original bit by bit, with dropout on, where the generator begins in the same state."""
    found = []
    for steps in ((), (Step(technique="checkpointing", options={"keep": keep}),)):
        workload = tiny_workload()
        for block in workload.model.blocks:  # type: ignore[union-attr]
            block.dropout.p = 0.3
        model = trainer_with(workload, *steps).model
        torch.manual_seed(3)
        workload.loss(model, next(iter(workload.batches))).backward()
        found.append({name: p.grad for name, p in model.named_parameters()})
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


def test_what_a_checkpointed_block_keeps() -> None:
    """The results of the products are kept, or nothing but the input; the last product is not needed again."""
    sizes = {}
    for name, options in {"all": None, "products": {"keep": "products"}, "inputs": {}}.items():
        workload = tiny_workload()
        steps = () if options is None else (Step(technique="checkpointing", options=options),)
        block = trainer_with(workload, *steps).model.blocks[0]  # type: ignore[union-attr,index]
        calls: list[str] = []
        x = torch.randn(4, 16, 24, requires_grad=True)
        y = block(x)
        with Calls(calls):
            y.sum().backward()
        sizes[name] = (calls.count("aten::addmm"), calls.count("aten::silu"))
    assert sizes == {"all": (0, 0), "products": (0, 1), "inputs": (2, 1)}


class Calls(TorchDispatchMode):
    """Write down which operators are called."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def test_a_budget_for_activations_is_handed_to_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._functorch.config as config

    technique = TRAINING_TABLE["activation_budget"]
    monkeypatch.setattr(config, "activation_memory_budget", 1.0)
    parts = parts_of(tiny_workload())
    technique.apply(parts, technique.options(kept=0.25))
    assert config.activation_memory_budget == 0.25
    assert isinstance(technique.check(parts, describe(), technique.options(kept=1.5)), NotApplicable)
    assert technique.needs == TRAINING_TABLE["compile"].groups, "without compile it does nothing"
