"""LAMB in the place of AdamW: its updates against the paper's formula in float64, and what it does not go with."""

import copy
import importlib.metadata
import importlib.util

import pytest
import torch
from tiny_training import TinyLM, adamw, tiny_workload
from torch import Tensor, nn

import whet
from whet.core.recipe import Recipe, Step
from whet.errors import RecipeError
from whet.measure.machine import describe
from whet.techniques.mechanisms.optimizers import guard_state
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.technique import NotApplicable
from whet.techniques.training import TRAINING_TABLE

TECHNIQUE = TRAINING_TABLE["lamb"]
HERE = describe()
needs_library = pytest.mark.skipif(
    importlib.util.find_spec("pytorch_optimizer") is None, reason="pytorch-optimizer is not installed"
)


class Reference:
    """One parameter under LAMB in float64: You et al., arXiv:1904.00962, version 3, with lengths of 10 at most."""

    def __init__(self, p: Tensor) -> None:
        self.p = p.detach().double()
        self.first, self.second = torch.zeros_like(self.p), torch.zeros_like(self.p)

    def step(self, gradient: Tensor, lr: float, decay: float, betas: tuple[float, float], eps: float) -> None:
        g = gradient.double()
        self.first = betas[0] * self.first + (1 - betas[0]) * g
        self.second = betas[1] * self.second + (1 - betas[1]) * g * g
        update = self.first / (self.second.sqrt() + eps) + decay * self.p
        length, of_update = min(float(self.p.norm()), 10.0), float(update.norm())
        self.p = self.p - lr * (length / of_update if length and of_update else 1.0) * update


def given_gradients(parameters: list[nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for p in parameters:
        p.grad = torch.randn(p.shape, generator=generator)


@needs_library
@pytest.mark.parametrize("foreach", [None, False])
def test_updates_are_those_of_the_paper(foreach: bool | None) -> None:
    """Of a small parameter, one that is longer than 10, and one that begins at zero; with and without decay."""
    torch.manual_seed(0)
    model = nn.ParameterList([torch.randn(4, 6) / 9, torch.randn(30, 20), torch.zeros(5), torch.randn(7)])
    parameters = list(model.parameters())
    groups = [{"params": parameters[:2], "weight_decay": 0.1}, {"params": parameters[2:], "weight_decay": 0.0}]
    own = torch.optim.AdamW(groups, lr=1e-2, betas=(0.8, 0.99), foreach=foreach)
    schedule = torch.optim.lr_scheduler.LambdaLR(own, lambda step: 0.5**step)
    optimizer = TECHNIQUE.apply(Parts(model, own, []), TECHNIQUE.options()).optimizer
    assert [group["foreach"] for group in optimizer.param_groups] == [None, None]
    for group in optimizer.param_groups:
        group["foreach"] = foreach
    references = [Reference(p) for p in parameters]
    for step in range(5):
        given_gradients(parameters, step)
        for i, (p, reference) in enumerate(zip(parameters, references, strict=True)):
            assert p.grad is not None
            reference.step(p.grad, 1e-2 * 0.5**step, 0.1 if i < 2 else 0.0, (0.8, 0.99), 1e-6)
        optimizer.step()
        schedule.step()
        for p, reference in zip(parameters, references, strict=True):
            torch.testing.assert_close(p.detach().double(), reference.p, rtol=2e-5, atol=1e-6)
    assert [group["step"] for group in own.param_groups] == [5, 5], "they are the loop's own groups"


@needs_library
def test_a_checkpoint_goes_on_where_it_was_and_another_optimisers_is_refused() -> None:
    models = [TinyLM(), TinyLM()]
    made = [TECHNIQUE.apply(Parts(m, adamw(m.parameters()), []), TECHNIQUE.options()).optimizer for m in models]
    guard_state(made[1])
    for seed in range(2):
        given_gradients(list(models[0].parameters()), seed)
        made[0].step()
    models[1].load_state_dict(models[0].state_dict())
    held = made[1].param_groups
    made[1].load_state_dict(copy.deepcopy(made[0].state_dict()))
    assert made[1].param_groups is held and held[0]["step"] == 2
    for model, optimizer in zip(models, made, strict=True):
        given_gradients(list(model.parameters()), 7)
        optimizer.step()
    torch.testing.assert_close(models[1].state_dict(), models[0].state_dict(), rtol=0, atol=0)
    other = adamw(models[0].parameters())
    other.step()
    with pytest.raises(RecipeError, match="this checkpoint is of another optimiser than Lamb: it holds step"):
        made[1].load_state_dict(other.state_dict())
    guard_state(other)
    with pytest.raises(RecipeError, match="than AdamW: it holds adam_norm"):
        other.load_state_dict(made[0].state_dict())


@pytest.mark.parametrize("name", ["bf16_parameters", "optimizer_in_backward", "optimizer_offload", "adafactor"])
def test_what_it_does_not_go_with(name: str) -> None:
    assert TECHNIQUE.groups & TRAINING_TABLE[name].groups
    workload = tiny_workload()
    optimizer = workload.optimizer(workload.model.parameters())
    recipe = Recipe(kind="training", steps=(Step(technique="lamb"), Step(technique=name)))
    with pytest.raises(RecipeError, match=f"lamb and {name} exclude each other"):
        whet.prepare(workload.model, optimizer, workload.batches, recipe=recipe)
    assert TECHNIQUE.groups.isdisjoint(TRAINING_TABLE["autocast"].groups | TRAINING_TABLE["accumulation"].groups)


def refusal(optimizer: torch.optim.Optimizer) -> str:
    verdict = TECHNIQUE.check(Parts(TinyLM(), optimizer, []), HERE, TECHNIQUE.options())
    assert isinstance(verdict, NotApplicable)
    return verdict.reason


def test_where_it_does_not_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    model = TinyLM()
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "4.1.0")
    assert "it stands for AdamW; the optimiser is SGD" in refusal(torch.optim.SGD(model.parameters(), lr=0.1))
    assert "amsgrad or maximize" in refusal(torch.optim.AdamW(model.parameters(), amsgrad=True))
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "3.8.0")
    assert "pytorch-optimizer is 3.8.0: install pytorch-optimizer<5,>=4.1" in refusal(adamw(model.parameters()))

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert "install pytorch-optimizer (pip install" in refusal(adamw(model.parameters()))
