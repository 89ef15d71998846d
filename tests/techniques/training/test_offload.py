"""Offload: refused on a CPU with the reason, and its parts checked without a GPU as far as that goes."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_training import TinyLM, adamw, tiny_workload, trainer_with
from torch import Tensor, nn

from whet.core.recipe import Step
from whet.core.workload.training import Trainer
from whet.measure.machine import describe
from whet.techniques.applied import unfit
from whet.techniques.costs.memory import StepMemory
from whet.techniques.mechanisms import host_copies, offloaded_activations, uses
from whet.techniques.mechanisms.buffer_pool import BufferPool
from whet.techniques.mechanisms.cpu_offloaded_gradients import HostGradient
from whet.techniques.mechanisms.host_copies import HostCopy
from whet.techniques.mechanisms.offloaded_activations import offloading
from whet.techniques.mechanisms.optimizer_wrapper import ExchangedUpdates
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.proof.updates import prove_updates
from whet.techniques.technique import Applies, NotApplicable
from whet.techniques.training import TRAINING_TABLE
from whet.techniques.training.activation_offload import chosen_blocks


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
    copy = offloaded_activations.HostCopy

    class Noted(copy):  # type: ignore[misc,valid-type]
        def __init__(self, x: Tensor) -> None:
            moved.append(x.data_ptr())
            super().__init__(x)

    monkeypatch.setattr(offloaded_activations, "HostCopy", Noted)
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


def test_the_memory_of_activations_is_used_again_in_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = BufferPool(pinned=False)
    monkeypatch.setattr(host_copies, "HOST_BUFFERS", pool)
    monkeypatch.setattr(offloaded_activations, "LEAST_BYTES", 0)
    workload = tiny_workload()
    batches = [next(iter(workload.batches))] * 3
    grown = []
    for batch in batches:
        with offloading(workload.model, device_type="cpu"):
            loss = workload.loss(workload.model, batch)
        assert pool.statistics().in_use_bytes > 0
        loss.backward()
        del loss
        found = pool.statistics()
        assert found.in_use_bytes == 0
        grown.append(found.num_grown)
    assert grown[0] == grown[1] == grown[2] > 5
    assert found.num_hits >= 2 * grown[0]


def test_activations_keep_their_order_in_memory() -> None:
    images = torch.randn(2, 8, 6, 6).contiguous(memory_format=torch.channels_last)
    for x in (images, images.flatten(2).transpose(1, 2), torch.randn(4, 6)[:, ::2]):
        found = HostCopy(x).on_device()
        assert torch.equal(found, x)
        dense = torch.empty_like(x)
        assert found.stride() == dense.stride()


def test_gradients_are_refused_where_several_processes_sum_them(monkeypatch: pytest.MonkeyPatch) -> None:
    technique = TRAINING_TABLE["optimizer_offload"]
    monkeypatch.setattr(Parts, "device_type", property(lambda self: "cuda"))
    model = TinyLM()
    parts = Parts(model, adamw(model.parameters()), [])
    for gradients, words in ((False, "state lies"), (True, "state and the gradients lie")):
        verdict = technique.check(parts, describe(), technique.options(gradients=gradients))
        assert isinstance(verdict, Applies) and words in verdict.detail
    monkeypatch.setattr(uses, "num_processes", lambda: 2)
    for gradients in (False, True):
        step = Step(technique="optimizer_offload", options={"gradients": gradients})
        ((_, refused),) = unfit(parts, [step], TRAINING_TABLE, describe())
        assert "does not bear DDP" in refused.reason
    memory = StepMemory(peak_bytes=1000, parameter_bytes=100, gradient_bytes=100, optimizer_bytes=200, other_bytes=600)
    least = [technique.predict_memory(memory, technique.options(gradients=moves)) for moves in (False, True)]
    assert least == [800, 702]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "options"),
    [("activation_offload", {}), ("optimizer_offload", {}), ("optimizer_offload", {"gradients": True})],
)
def test_offload_trains_the_same_on_a_gpu(name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offloaded_activations, "LEAST_BYTES", 0)
    losses = []
    for steps in ((), (Step(technique=name, options=options),)):
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
            moves = options.get("gradients", False)
            assert {isinstance(p.grad, HostGradient) for p in trainer.model.parameters()} == {moves}
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=0)
