"""Techniques for GPUs: refused on a CPU with the reason; what they compute, emulated or on a GPU."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_training import TinyLM, adamw, image_workload
from torch import nn

from whet.measure.machine import describe
from whet.techniques.mechanisms.module_class import extend
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.technique import Applicability, Applies, NotApplicable
from whet.techniques.training import TRAINING_TABLE, fp8


def verdict(name: str, model: nn.Module, machine: Any = None) -> Applicability:
    technique = TRAINING_TABLE[name]
    return technique.check(Parts(model, adamw(model.parameters()), []), machine or describe(), technique.options())


@pytest.mark.parametrize(
    ("name", "reason"), [("fp8", "would emulate products"), ("cudnn_benchmark", "cuDNN computes on a GPU")]
)
def test_what_is_for_gpus_is_refused_on_a_cpu(name: str, reason: str) -> None:
    refused = verdict(name, image_workload().model)
    assert isinstance(refused, NotApplicable)
    assert reason in refused.reason


def test_layers_for_8_bit_floats() -> None:
    model = nn.Sequential(nn.Linear(32, 48), nn.Linear(48, 20), nn.Linear(20, 32), nn.Linear(32, 64), nn.Linear(64, 64))
    assert fp8.layers_of(model) == [model[0], model[3]], "multiples of 16, and the last layer stays"
    assert fp8.layers_of(TinyLM()) == [], "layers of 24"


def test_emulated_products_of_8_bit_floats_are_close() -> None:
    class Emulated(fp8.Float8Forward):
        emulates = True

    torch.manual_seed(0)
    layer = nn.Linear(64, 96)
    x = torch.randn(33, 64, requires_grad=True)
    weights = torch.randn(33, 96)

    def gradients() -> list[torch.Tensor]:
        out = layer(x)
        return [out, *torch.autograd.grad((out * weights).sum(), (x, layer.weight, layer.bias))]

    expected = gradients()
    keys = list(layer.state_dict())
    extend(layer, Emulated)
    found = gradients()
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.cosine_similarity(mine.flatten(), theirs.flatten(), dim=0) > 0.995
    assert not torch.equal(found[0], expected[0])
    assert list(layer.state_dict()) == keys
    assert isinstance(layer, nn.Linear)
    layer.eval()
    torch.testing.assert_close(layer(x), expected[0], rtol=0, atol=0)


@pytest.mark.gpu
def test_8_bit_floats_on_a_gpu() -> None:
    machine = describe()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64), nn.Linear(64, 10)).cuda()
    old = replace(machine, gpus=tuple(replace(gpu, capability=(8, 0)) for gpu in machine.gpus))
    refused = verdict("fp8", model, old)
    assert isinstance(refused, NotApplicable)
    assert "need 8.9" in refused.reason
    found = verdict("fp8", model)
    if isinstance(found, NotApplicable):
        pytest.skip(found.reason)
    x = torch.randn(40, 64, device="cuda")
    expected = model(x)
    technique = TRAINING_TABLE["fp8"]
    technique.apply(Parts(model, adamw(model.parameters()), []), technique.options())
    out = model(x)
    assert out.dtype is torch.float32
    assert torch.cosine_similarity(out.flatten(), expected.flatten(), dim=0) > 0.99
    out.sum().backward()
    assert all(p.grad is not None and p.grad.dtype is torch.float32 for p in model.parameters())


@pytest.mark.gpu
def test_cudnn_times_its_algorithms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    model = image_workload().model.cuda()
    assert isinstance(verdict("cudnn_benchmark", model), Applies)
    technique = TRAINING_TABLE["cudnn_benchmark"]
    technique.apply(Parts(model, adamw(model.parameters()), []), technique.options())
    assert torch.backends.cudnn.benchmark
    assert isinstance(verdict("cudnn_benchmark", model), NotApplicable)
