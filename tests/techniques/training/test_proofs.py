"""The proof of gradients and updates passes what is the same training, and finds planted faults."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from planted_faults import by_mean_of_means, scaled, with_group, without_masters
from tiny_training import TinyLM, adamw, changed_trainer, image_workload, loss_of, tiny_workload, trainer_with
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from whet.core.recipe import Step
from whet.core.workload import TrainingWorkload
from whet.core.workload.training import Trainer
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.proof import gradients
from whet.techniques.proof.gradients import GradientProof
from whet.techniques.proof.updates import UpdateProof, prove_updates
from whet.techniques.training import TRAINING_TABLE
from whet.techniques.training_technique import Exactness


def gradient_proof(workload: TrainingWorkload, trainer: Trainer, exactness: Exactness) -> GradientProof:
    """Hold the gradients of a trainer against those of a fresh workload."""
    fresh = image_workload() if isinstance(next(iter(workload.batches)), tuple) else tiny_workload()
    batches = list(fresh.batches)[:3]
    fresh.model.train()
    original = gradients.gradients_of(fresh.model, fresh.loss, batches, seed=0)
    reference = gradients.reference_gradients(fresh.model, fresh.loss, batches, seed=0)
    found = gradients.gradients_of(trainer.model, workload.loss, batches, seed=0)
    return gradients.judged(found, original, reference, exactness)


@pytest.mark.parametrize("make", [tiny_workload, image_workload])
def test_the_original_proves_itself(make: Callable[[], TrainingWorkload]) -> None:
    workload = make()
    trainer = Trainer(workload)
    for exactness in Exactness:
        proof = gradient_proof(workload, trainer, exactness)
        assert proof.is_same, proof.words
        assert GradientProof.model_validate_json(proof.model_dump_json()) == proof
    updates = prove_updates(workload, trainer)
    assert updates.is_same is True, updates.words
    assert updates.error < 1e-4


def test_gradients_leave_parameters_and_statistics_as_they_are() -> None:
    workload = image_workload()
    workload.model.train()
    before = {name: value.clone() for name, value in workload.model.state_dict().items()}
    gradients.gradients_of(workload.model, workload.loss, list(workload.batches), seed=0)
    for name, value in workload.model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)
    assert all(p.grad is None for p in workload.model.parameters())


FAULTY_LOSSES = {
    "gradients doubled": scaled(2.0),
    "a mean of means": by_mean_of_means,
    "a mean over another number of tokens": scaled(17 / 16),
    "fp16 without a scaler": lambda loss: lambda model, batch: (loss(model, batch) * 1e-9).half().float() * 1e9,
}


@pytest.mark.parametrize("exactness", [Exactness.EXACT, Exactness.ROUNDED])
@pytest.mark.parametrize("fault", FAULTY_LOSSES)
def test_faults_in_gradients_are_found(fault: str, exactness: Exactness) -> None:
    workload = replace(tiny_workload(), loss=FAULTY_LOSSES[fault](loss_of))
    proof = gradient_proof(workload, Trainer(workload), exactness)
    assert not proof.is_same, proof.words


def test_bfloat16_is_no_exact_technique_but_a_rounded_one() -> None:
    workload = tiny_workload()
    trainer = trainer_with(workload, Step(technique="autocast"))
    assert not gradient_proof(workload, trainer, Exactness.EXACT).is_same
    proof = gradient_proof(workload, trainer, Exactness.ROUNDED)
    assert proof.is_same, proof.words
    assert 0.98 < proof.cosine < 1


def stepping_twice(parts: Parts) -> Parts:
    step = parts.optimizer.step

    def twice() -> None:
        step()
        step()

    parts.optimizer.step = twice  # type: ignore[method-assign,assignment]
    return parts


FAULTY_UPDATES = {
    "learning rate 0.8x": with_group(lr=0.8),
    "learning rate 2x": with_group(lr=2.0),
    "weight decay lost": with_group(weight_decay=0.0),
    "bf16 parameters without masters": without_masters,
    "two updates a step": stepping_twice,
}


@pytest.mark.parametrize("fault", FAULTY_UPDATES)
def test_faults_in_updates_are_found(fault: str) -> None:
    workload = tiny_workload()
    proof = prove_updates(workload, changed_trainer(workload, FAULTY_UPDATES[fault]))
    assert proof.is_same is False, proof.words
    assert UpdateProof.model_validate_json(proof.model_dump_json()) == proof


def test_a_schedule_that_steps_twice_is_found() -> None:
    def schedule(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)

    workload = replace(tiny_workload(), schedule=schedule)
    assert prove_updates(workload, Trainer(workload)).is_same is True
    workload = replace(tiny_workload(), schedule=schedule)
    trainer = Trainer(workload)
    assert trainer.scheduler is not None
    step = trainer.scheduler.step
    trainer.scheduler.step = lambda *args: (step(), step())[0]  # type: ignore[method-assign,func-returns-value]
    assert prove_updates(workload, trainer).is_same is False


def grouped(model: nn.Module) -> torch.optim.AdamW:
    """Matrices decay and vectors do not, as in most recipes: the groups are made from the model itself."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    return torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}])


def test_an_optimiser_that_is_bound_to_the_model_is_followed() -> None:
    workload = tiny_workload()
    bound = replace(workload, optimizer=lambda _: grouped(workload.model))
    assert prove_updates(bound, Trainer(bound)).is_same is True
    workload = tiny_workload()
    bound = replace(workload, optimizer=lambda _: grouped(workload.model))
    assert prove_updates(bound, changed_trainer(bound, with_group(lr=0.8))).is_same is False


def test_an_optimiser_of_other_parameters_cannot_be_followed() -> None:
    other = nn.Parameter(torch.zeros(3))
    workload = replace(tiny_workload(), optimizer=lambda p: torch.optim.AdamW([*p, other]))
    proof = prove_updates(workload, Trainer(workload))
    assert proof.is_same is None
    assert "other parameters" in proof.words


def test_dropout_is_switched_off_for_the_proof_and_on_again() -> None:
    workload = tiny_workload()
    layer = nn.Dropout(0.3)
    model = nn.Sequential(workload.model, layer)
    with gradients.without_dropout(model):
        assert layer.p == 0.0
    assert layer.p == 0.3


def with_checkpoints(model: nn.Module, *, preserves: bool) -> None:
    """Compute blocks again in backward, with the same numbers of dropout or with others."""
    for block in model.blocks:  # type: ignore[union-attr]
        forward = block.forward

        def again(x: Tensor, forward: Any = forward) -> Any:
            return checkpoint(forward, x, use_reentrant=False, preserve_rng_state=preserves)

        block.forward = again


@pytest.mark.parametrize("preserves", [True, False])
def test_dropout_that_drops_other_numbers_in_backward_is_found(preserves: bool) -> None:
    workload = tiny_workload(model=TinyLM(dropout=0.3))
    model = workload.model.train()
    assert gradients.drops_something(model)
    assert not gradients.drops_something(TinyLM())
    batches = list(workload.batches)[:1]
    original = gradients.gradients_of(model, workload.loss, batches, seed=0, drops=True)
    with_checkpoints(model, preserves=preserves)
    found = gradients.gradients_of(model, workload.loss, batches, seed=0, drops=True)
    without = gradients.gradients_of(model, workload.loss, batches, seed=0)
    assert bool(gradients.other_dropout(found, original)) is not preserves
    assert "dropout drops other numbers" in gradients.other_dropout(without, original)


@pytest.mark.parametrize("name", ["checkpointing", "chunked_loss", "optimizer_in_backward"])
def test_what_claims_to_keep_dropout_does(name: str) -> None:
    assert TRAINING_TABLE[name].keeps_dropout
    workload = tiny_workload(model=TinyLM(dropout=0.3), clip_norm=None)
    batches = list(workload.batches)[:1]
    original = gradients.gradients_of(workload.model.train(), workload.loss, batches, seed=0, drops=True)
    model = trainer_with(workload, Step(technique=name)).model
    found = gradients.gradients_of(model, workload.loss, batches, seed=0, drops=True)
    assert gradients.other_dropout(found, original) == ""


def test_a_negligible_gradient_is_not_judged() -> None:
    """The bias of a convolution before a batch norm has a gradient of rounding errors alone."""
    workload = image_workload()
    trainer = Trainer(workload)
    reference = gradients.reference_gradients(workload.model, workload.loss, list(workload.batches)[:1], seed=0)
    assert reference["0.first.bias"].abs().max() < 1e-12
    assert gradient_proof(workload, trainer, Exactness.EXACT).is_same


def test_a_label_of_the_loss_is_a_float64_problem_as_well() -> None:
    """Inputs that are floating-point become float64 for the reference; indices stay what they are."""
    batch = (torch.ones(2, 3), torch.tensor([1, 2]))
    images, labels = gradients.in_float64(batch)
    assert (images.dtype, labels.dtype) == (torch.float64, torch.int64)
    assert float(F.mse_loss(images, torch.ones(2, 3, dtype=torch.float64))) == 0


def test_the_data_does_not_depend_on_what_the_model_draws() -> None:
    """A variant that draws more numbers in forward sees the same batches, also in later passes."""

    class Shuffled:
        def __iter__(self) -> Any:
            return iter(torch.randperm(5).split(1))

    def batches_of(extra: int) -> list[int]:
        def loss(model: nn.Module, batch: Tensor) -> Tensor:
            torch.rand(extra)
            seen.append(int(batch))
            return model(torch.ones(1, 2)).sum()  # type: ignore[no-any-return]

        seen: list[int] = []
        torch.manual_seed(0)
        workload = TrainingWorkload(model=nn.Linear(2, 1), loss=loss, optimizer=adamw, batches=Shuffled())
        trainer = Trainer(workload)
        for _ in range(12):
            trainer.step()
        return seen

    assert batches_of(0) == batches_of(7)
    assert batches_of(0)[:5] != batches_of(0)[5:10], "each pass has an order of its own"
