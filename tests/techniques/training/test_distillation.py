"""Distillation: the loss against float64 and torch.distributions, and a training with a teacher, in parts too."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_training import TinyLM, adamw, loss_of
from torch import Tensor, nn

import whet.techniques.mechanisms.distilled_losses as losses
from whet.core.recipe import Step
from whet.core.workload import TrainingWorkload
from whet.core.workload.blocks import blocks_of
from whet.core.workload.training import Trainer
from whet.errors import OptionError, TargetError
from whet.techniques.applied import applied
from whet.techniques.mechanisms.distillation import (
    MAPS,
    HiddenStates,
    distillation_loss,
    distilled,
    even_layers,
    hidden_loss,
)
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.training import TRAINING_TABLE

N, V = 23, 11


def drawn(seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    student, teacher = (3 * torch.randn(N, V, generator=generator).to(dtype) for _ in range(2))
    target = torch.randint(V, (N,), generator=generator)
    target[::5] = -100
    return student.requires_grad_(), teacher, target


def expected(student: Tensor, teacher: Tensor, target: Tensor, temperature: float, alpha: float) -> Tensor:
    """Return the loss by torch.distributions in float64."""
    keep = target != -100
    p, q = (torch.distributions.Categorical(logits=x.double()[keep] / temperature) for x in (teacher, student))
    kl = torch.distributions.kl_divergence(p, q).mean()
    log_q = torch.distributions.Categorical(logits=student.double()[keep])
    return -(1 - alpha) * log_q.log_prob(target[keep]).mean() + alpha * temperature**2 * kl


@pytest.mark.parametrize("chunk_bytes", [losses._CHUNK_BYTES, 4 * V * 4], ids=["whole", "in chunks"])
@settings(max_examples=20, deadline=None)
@given(temperature=st.floats(0.3, 8), alpha=st.sampled_from([0.0, 0.3, 1.0]), seed=st.integers(0, 99))
def test_the_loss_and_its_gradient_are_those_of_float64(
    chunk_bytes: int, temperature: float, alpha: float, seed: int
) -> None:
    student, teacher, target = drawn(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(losses, "_CHUNK_BYTES", chunk_bytes)
        loss = distillation_loss(student, teacher, target, temperature=temperature, alpha=alpha)
    wanted = expected(student, teacher, target, temperature, alpha)
    torch.testing.assert_close(loss.double(), wanted, rtol=2e-5, atol=2e-5)
    (ours,) = torch.autograd.grad(3 * loss, student)
    (theirs,) = torch.autograd.grad(3 * wanted, student)
    torch.testing.assert_close(ours.double(), theirs.double(), rtol=1e-4, atol=1e-6 * temperature)


def test_an_equal_teacher_adds_nothing_and_masked_rows_get_no_gradient() -> None:
    student, _, target = drawn()
    loss = distillation_loss(student, student.detach().clone(), target, temperature=2, alpha=1)
    assert abs(float(loss.detach())) < 1e-6
    student, teacher, target = drawn()
    distillation_loss(student, teacher, target).backward()
    assert student.grad is not None
    assert not student.grad[target == -100].any() and student.grad[target != -100].any(1).all()
    none = torch.full_like(target, -100)
    student.grad = None
    loss = distillation_loss(student, teacher, none)
    loss.backward()
    assert float(loss.detach()) == 0 and not student.grad.any()  # type: ignore[attr-defined]


def test_a_teacher_that_rules_tokens_out_gives_finite_numbers() -> None:
    student, teacher, target = drawn()
    teacher[:, 3] = -torch.inf
    loss = distillation_loss(student, teacher, target.where(target != 3, 2), temperature=2, alpha=0.7)
    loss.backward()
    assert loss.isfinite() and student.grad is not None and student.grad.isfinite().all()


def test_logits_in_bfloat16_are_widened() -> None:
    student, teacher, target = drawn(dtype=torch.bfloat16)
    student = student.detach().requires_grad_()
    loss = distillation_loss(student, teacher, target, temperature=2, alpha=0.5)
    assert loss.dtype is torch.float32
    torch.testing.assert_close(loss.double(), expected(student, teacher, target, 2, 0.5), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("temperature", "alpha"), [(0.0, 0.5), (float("inf"), 0.5), (1.0, 1.5), (1.0, -0.1)])
def test_numbers_out_of_range_are_refused(temperature: float, alpha: float) -> None:
    with pytest.raises(OptionError, match=r"temperature|alpha"):
        distillation_loss(*drawn(), temperature=temperature, alpha=alpha)


def test_layers_are_spaced_evenly() -> None:
    assert even_layers(3, 6) == {0: 1, 1: 3, 2: 5}
    assert even_layers(2, 2) == {0: 0, 1: 1}
    assert even_layers(4, 12)[3] == 11
    assert even_layers(4, 2) == {0: 0, 1: 0, 2: 1, 3: 1}


def test_hidden_states_count_where_targets_do() -> None:
    a, b = torch.randn(2, 3, 4, dtype=torch.float64), torch.randn(2, 3, 4, dtype=torch.float64)
    keep = torch.tensor([1, 0, 1, 1, 0, 0], dtype=torch.bool)
    found = hidden_loss([a, a], [b, a], keep)
    torch.testing.assert_close(found, ((a - b).flatten(0, 1)[keep] ** 2).mean() / 2)


def workload(model: nn.Module, loss: Any = loss_of) -> TrainingWorkload:
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randint(1100, (6, 9), generator=generator) for _ in range(4)]
    return TrainingWorkload(model=model, loss=loss, optimizer=adamw, batches=batches)


def masked_loss(model: nn.Module, batch: Tensor) -> Tensor:
    """Ignore as many targets of each row as its number says, so that parts of a batch have different counts."""
    logits = model(batch[:, :-1]).float()
    target = batch[:, 1:].clone()
    target[(batch[:, :1] % 10) > torch.arange(8)] = -100
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def models(seed: int = 0) -> tuple[TinyLM, TinyLM]:
    torch.manual_seed(seed)
    return TinyLM(), TinyLM()


def test_a_training_with_a_teacher_takes_the_loss_by_hand() -> None:
    student, teacher = models()
    made = distilled(workload(student), teacher, temperature=3.0, alpha=0.6)
    batch = made.batches[0]  # type: ignore[index]
    with torch.no_grad():
        logits = [one(batch[:, :-1]).flatten(0, 1) for one in (student, teacher)]
        wanted = expected(*logits, batch[:, 1:].flatten(), 3.0, 0.6)
        torch.testing.assert_close(made.loss(student, batch).double(), wanted, rtol=1e-5, atol=1e-5)
    before = [p.clone() for p in teacher.parameters()]
    trainer = Trainer(made)
    first = float(trainer.step())
    for _ in range(30):
        last = float(trainer.step())
    assert last < first - 0.1
    assert all(torch.equal(a, b) for a, b in zip(before, teacher.parameters(), strict=True))
    assert not teacher.training and not any(p.requires_grad for p in teacher.parameters())


@pytest.mark.parametrize("with_hidden", [False, True])
def test_a_batch_in_parts_has_the_gradients_of_the_whole(with_hidden: bool) -> None:
    gradients = []
    for parts in (1, 3):
        student, teacher = models()
        hidden = HiddenStates(even_layers(3, 3), 0.5) if with_hidden else None
        if hidden is not None:
            hidden.add_maps(student, (24, 24), 0)
            assert not hasattr(student, MAPS), "equal widths need no maps"
        made = distilled(workload(student, masked_loss), teacher, 2.0, 0.5, hidden=hidden)
        made.batches[0][:2, 0] = 9  # type: ignore[index]  # the first part of three has no target at all
        steps = [Step(technique="accumulation", options={"num_parts": parts})] if parts > 1 else []
        trainer = Trainer(
            made,
            change=lambda m, o, b, steps=steps: applied(Parts(m, o, b), steps, TRAINING_TABLE),  # type: ignore[misc]
        )
        loss = trainer.compute(trainer.next_batches(), updates=False)
        gradients.append([loss.detach(), *(p.grad for p in student.parameters())])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_the_state_of_a_layer_is_held_against_the_teachers_through_a_map() -> None:
    torch.manual_seed(0)
    student = TinyLM()
    teacher = TinyLM()
    hidden = HiddenStates({0: 2, 2: 1}, 0.25)
    hidden.add_maps(student, (24, 31), 0)
    maps = getattr(student, MAPS)
    assert [tuple(one.weight.shape) for one in maps.values()] == [(31, 24), (31, 24)]
    wide = nn.Linear(24, 31, bias=False)  # makes the teacher's states wider
    for block in teacher.blocks:
        block.register_forward_hook(lambda module, args, output: wide(output))
    teacher.blocks[1].forward = lambda x: x[..., :24]  # type: ignore[method-assign]
    teacher.blocks[2].forward = lambda x: x[..., :24]  # type: ignore[method-assign]
    teacher.head = nn.Linear(31, 1100)
    made = distilled(workload(student), teacher, 1.0, 0.0, hidden=hidden)
    batch = made.batches[0]  # type: ignore[index]
    states: dict[Any, Tensor] = {}
    for name, model in (("student", student), ("teacher", teacher)):
        for i, block in enumerate(model.blocks):
            block.register_forward_hook(lambda m, a, output, key=(name, i): states.__setitem__(key, output.detach()))
    loss = made.loss(student, batch)
    terms = [
        (states["student", i] @ maps[str(i)].weight.T - states["teacher", j]).double().square().mean()
        for i, j in ((0, 2), (2, 1))
    ]
    wanted = loss_of(student, batch).double() + 0.25 * sum(terms) / 2
    torch.testing.assert_close(loss.double(), wanted, rtol=1e-5, atol=1e-5)
    loss.backward()
    assert all(one.weight.grad.abs().sum() > 0 for one in maps.values())


def test_smoothed_labels_and_classes_with_weights_keep_their_term() -> None:
    student, teacher = models()

    def smoothed(model: nn.Module, batch: Tensor) -> Tensor:
        return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten(), label_smoothing=0.1)

    made = distilled(workload(student, smoothed), teacher, 2.0, 0.5)
    batch = made.batches[0]  # type: ignore[index]
    with torch.no_grad():
        logits = [one(batch[:, :-1]).flatten(0, 1) for one in (student, teacher)]
        soft = expected(*logits, batch[:, 1:].flatten(), 2.0, 1.0)
        wanted = 0.5 * smoothed(student, batch).double() + 0.5 * soft
        torch.testing.assert_close(made.loss(student, batch).double(), wanted, rtol=1e-5, atol=1e-5)


def test_a_recipe_that_puts_logits_off_gives_the_same_loss() -> None:
    found = []
    for steps in ([], [Step(technique="chunked_loss")]):
        student, teacher = models()
        made = distilled(workload(student), teacher, 2.0, 0.5)
        trainer = Trainer(
            made,
            change=lambda m, o, b, steps=steps: applied(Parts(m, o, b), steps, TRAINING_TABLE),  # type: ignore[misc]
        )
        found.append([float(trainer.step()) for _ in range(3)])
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_what_cannot_be_distilled_is_refused() -> None:
    student, teacher = models()
    teacher.head = nn.Linear(24, 900)
    made = distilled(workload(student), teacher)
    batch = made.batches[0]  # type: ignore[index]
    with pytest.raises(TargetError, match=r"the teacher's \[48, 900\]"):
        made.loss(student, batch)
    squared = distilled(workload(student, lambda model, x: model(x).square().mean()), models()[1])
    with pytest.raises(TargetError, match="takes no cross-entropy"):
        squared.loss(student, batch)
    assert len(blocks_of(nn.Sequential(nn.ModuleList([TinyLM().blocks[0]])))) == 1
