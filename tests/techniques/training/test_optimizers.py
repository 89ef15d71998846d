"""Techniques that change the optimiser: Muon beside AdamW, foreach, and gradients that are freed."""

import copy
from typing import Any

import pytest
import torch
import torch._dynamo.utils
from tiny_training import TinyLM, adamw, image_workload, tiny_workload
from torch import nn

from whet.measure.machine import describe
from whet.techniques.mechanisms.muon import MuonWithAdamW
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.technique import Applies, NotApplicable
from whet.techniques.training import TRAINING_TABLE


def given_gradients(parameters: list[nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for p in parameters:
        p.grad = torch.randn(p.shape, generator=generator)


def test_muon_updates_matrices_and_adamw_the_rest() -> None:
    mine, theirs = TinyLM(), TinyLM()
    theirs.load_state_dict(mine.state_dict())
    parts = Parts(mine, torch.optim.AdamW(mine.parameters(), lr=2e-3, weight_decay=0.1, eps=1e-6), [])
    schedule = torch.optim.lr_scheduler.LambdaLR(parts.optimizer, lambda step: 0.5**step)
    technique = TRAINING_TABLE["muon"]
    optimizer = technique.apply(parts, technique.options()).optimizer
    names = {name for name, p in theirs.named_parameters() if "blocks" in name and p.ndim == 2}
    assert len(names) == 9
    matrices = [p for name, p in theirs.named_parameters() if name in names]
    others = [p for name, p in theirs.named_parameters() if name not in names]
    muon = torch.optim.Muon(matrices, lr=2e-3, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    rest = torch.optim.AdamW(others, lr=2e-3, weight_decay=0.1, eps=1e-6)
    for step in range(3):
        for model in (mine, theirs):
            given_gradients(list(model.parameters()), step)
        optimizer.step()
        schedule.step()
        for reference in (muon, rest):
            reference.step()
            reference.param_groups[0]["lr"] = 2e-3 * 0.5 ** (step + 1)
    torch.testing.assert_close(mine.state_dict(), theirs.state_dict(), rtol=0, atol=0)


def test_muons_state_is_saved_and_loaded() -> None:
    model = TinyLM()
    matrices = [layer.weight for layer in model.blocks.modules() if isinstance(layer, nn.Linear)]
    optimizer = MuonWithAdamW(model.parameters(), matrices)
    given_gradients(list(model.parameters()), 0)
    optimizer.step()
    twin = TinyLM()
    twin.load_state_dict(model.state_dict())
    of_twin = [layer.weight for layer in twin.blocks.modules() if isinstance(layer, nn.Linear)]
    again = MuonWithAdamW(twin.parameters(), of_twin)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for one, other in ((model, optimizer), (twin, again)):
        given_gradients(list(one.parameters()), 1)
        other.step()
    torch.testing.assert_close(twin.state_dict(), model.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), "it stands for AdamW"),
        (lambda p: torch.optim.AdamW(p, amsgrad=True), "amsgrad or maximize"),
    ],
)
def test_where_muon_does_not_apply(make: Any, reason: str) -> None:
    technique = TRAINING_TABLE["muon"]
    model = TinyLM()
    verdict = technique.check(Parts(model, make(model.parameters()), []), describe(), technique.options())
    assert isinstance(verdict, NotApplicable)
    assert reason in verdict.reason


def test_muon_leaves_a_model_of_convolutions_alone() -> None:
    technique = TRAINING_TABLE["muon"]
    workload = image_workload()
    parts = Parts(workload.model, adamw(workload.model.parameters()), [])
    assert isinstance(technique.check(parts, describe(), technique.options()), NotApplicable)


@pytest.mark.parametrize("make", [torch.optim.NAdam, torch.optim.RMSprop, torch.optim.Adafactor])
def test_foreach_is_the_same_where_there_is_no_fused_kernel(make: Any) -> None:
    technique = TRAINING_TABLE["fused_optimizer"]
    models = [TinyLM(), TinyLM()]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [make(model.parameters(), lr=1e-3) for model in models]
    parts = Parts(models[0], optimizers[0], [])
    assert isinstance(technique.check(parts, describe(), technique.options()), NotApplicable)
    assert isinstance(technique.check(parts, describe(), technique.options(kind="foreach")), Applies)
    technique.apply(parts, technique.options(kind="foreach"))
    for model, optimizer in zip(models, optimizers, strict=True):
        given_gradients(list(model.parameters()), 0)
        optimizer.step()
    torch.testing.assert_close(models[0].state_dict(), models[1].state_dict(), rtol=1e-6, atol=1e-7)
    verdict = technique.check(parts, describe(), technique.options(kind="foreach"))
    assert isinstance(verdict, NotApplicable)
    assert "already" in verdict.reason


def test_a_compiled_step_is_the_same_with_a_schedule_and_after_a_checkpoint() -> None:
    technique = TRAINING_TABLE["fused_optimizer"]
    models = [TinyLM(), TinyLM()]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.9) for model in models]
    parts = Parts(models[0], optimizers[0], [])
    assert isinstance(technique.check(parts, describe(), technique.options(kind="compiled")), Applies)
    technique.apply(parts, technique.options(kind="compiled"))
    schedules = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8) for optimizer in optimizers]
    torch._dynamo.utils.counters.clear()
    for number in range(10):
        for model, optimizer, schedule in zip(models, optimizers, schedules, strict=True):
            given_gradients(list(model.parameters()), number)
            optimizer.step()
            schedule.step()
        if number == 3:
            optimizers[0].load_state_dict(optimizers[0].state_dict())
    torch.testing.assert_close(models[0].state_dict(), models[1].state_dict(), rtol=1e-5, atol=1e-6)
    assert 1 <= torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 4
    assert isinstance(optimizers[0].param_groups[0]["lr"], float)


def test_what_cannot_be_compiled_is_refused() -> None:
    technique = TRAINING_TABLE["fused_optimizer"]
    for make, said in ((adamw, "has a fused kernel"), (torch.optim.Adafactor, "cannot be compiled as a whole")):
        parts = Parts(model := TinyLM(), make(model.parameters()), [])
        verdict = technique.check(parts, describe(), technique.options(kind="compiled"))
        assert isinstance(verdict, NotApplicable)
        assert said in verdict.reason


def test_foreach_is_refused_where_a_fused_kernel_is_there_or_nothing_is_known() -> None:
    technique = TRAINING_TABLE["fused_optimizer"]
    model = TinyLM()

    class Own(torch.optim.RMSprop):
        """A subclass may have another step."""

    for optimizer in (adamw(model.parameters()), Own(model.parameters()), torch.optim.LBFGS(model.parameters())):
        verdict = technique.check(Parts(model, optimizer, []), describe(), technique.options(kind="foreach"))
        assert isinstance(verdict, NotApplicable)


class KeepsGradients(torch.optim.SGD):
    """An optimiser whose default is the old one."""

    def zero_grad(self, set_to_none: bool = False) -> None:
        super().zero_grad(set_to_none)


def test_gradients_are_freed_where_the_optimiser_would_write_zeros() -> None:
    technique = TRAINING_TABLE["set_to_none"]
    workload = tiny_workload()
    parts = Parts(workload.model, KeepsGradients(workload.model.parameters(), lr=0.1), workload.batches)
    assert isinstance(technique.check(parts, describe(), technique.options()), Applies)
    technique.apply(parts, technique.options())
    for call in (parts.optimizer.zero_grad, lambda: parts.optimizer.zero_grad(set_to_none=False)):
        given_gradients(list(workload.model.parameters()), 0)
        call()
        assert all(p.grad is None for p in workload.model.parameters())
    plain = Parts(workload.model, adamw(workload.model.parameters()), [])
    assert isinstance(technique.check(plain, describe(), technique.options()), NotApplicable)
