"""Offload: refused on a CPU with the reason, and its parts checked without a GPU as far as that goes."""

from dataclasses import replace

import pytest
import torch
from tiny_training import TinyLM, adamw, tiny_workload, trainer_with
from torch import Tensor, nn

from whet.machine import describe
from whet.recipe import Step
from whet.technique import Applies, NotApplicable
from whet.techniques.training import TRAINING_TABLE
from whet.techniques.training.activation_offload import chosen_blocks
from whet.training import offloaded_activations
from whet.training.exchanged_updates import ExchangedUpdates
from whet.training.offloaded_activations import offloading
from whet.training.parts import Parts
from whet.training.updates import prove_updates
from whet.workload.training import Trainer


@pytest.mark.parametrize("name", ["activation_offload", "optimizer_offload"])
def test_a_cpu_has_no_other_memory(name: str) -> None:
    technique = TRAINING_TABLE[name]
    model = TinyLM()
    verdict = technique.check(Parts(model, adamw(model.parameters()), []), describe(), technique.options())
    assert isinstance(verdict, NotApplicable)
    assert "the model is on the CPU: there is no other memory" in verdict.reason


def test_activations_that_went_and_came_back_give_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offloaded_activations, "LEAST_BYTES", 0)
    moved: list[int] = []
    copy = offloaded_activations._to_host
    monkeypatch.setattr(offloaded_activations, "_to_host", lambda x: (moved.append(x.data_ptr()), copy(x))[1])
    found = []
    for moves in (False, True):
        workload = tiny_workload()
        workload.model.train()
        torch.manual_seed(0)
        if moves:
            with offloading(workload.model, device_type="cpu"):
                loss = workload.loss(workload.model, next(iter(workload.batches)))
        else:
            loss = workload.loss(workload.model, next(iter(workload.batches)))
        loss.backward()
        found.append({name: p.grad for name, p in workload.model.named_parameters()})
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
    assert len(moved) > 20
    assert not {p.data_ptr() for p in workload.model.parameters()} & set(moved), "weights stay"


def test_the_first_blocks_are_chosen() -> None:
    model = TinyLM()
    assert chosen_blocks(model, 1.0) == list(model.blocks)
    assert chosen_blocks(model, 0.5) == list(model.blocks)[:2]
    technique = TRAINING_TABLE["activation_offload"]
    parts = Parts(model, adamw(model.parameters()), [])
    assert isinstance(technique.check(parts, describe(), technique.options(share=0.0)), NotApplicable)


class InCopies(ExchangedUpdates):
    """Update copies beside the parameters, as optimizer_offload does in another memory."""

    def is_exchanged(self, p: nn.Parameter) -> bool:
        return True

    def lent(self, p: nn.Parameter) -> Tensor:
        return p.data.clone()

    def write_back(self, p: nn.Parameter, updated: Tensor) -> None:
        p.copy_(updated)


def test_updates_of_copies_are_the_same_updates() -> None:
    for make in (adamw, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)):
        workload = replace(tiny_workload(), optimizer=make)
        trainer = Trainer(workload, change=lambda m, o, b: (InCopies(o), Parts(m, o, b))[1])
        proof = prove_updates(workload, trainer)
        assert proof.is_same is True, proof.words


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["activation_offload", "optimizer_offload"])
def test_offload_trains_the_same_on_a_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offloaded_activations, "LEAST_BYTES", 0)
    losses = []
    for steps in ((), (Step(technique=name),)):
        workload = tiny_workload()
        workload = replace(workload, model=workload.model.cuda(), batches=[batch.cuda() for batch in workload.batches])
        parts = Parts(workload.model, adamw(workload.model.parameters()), [])
        technique = TRAINING_TABLE[name]
        assert isinstance(technique.check(parts, describe(), technique.options()), Applies)
        trainer = trainer_with(workload, *steps)
        losses.append(torch.stack([trainer.step() for _ in range(10)]).cpu())
        if name == "optimizer_offload" and steps:
            states = [x for one in trainer.optimizer.state.values() for x in one.values()]
            assert {x.device.type for x in states} == {"cpu"}
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=0)
