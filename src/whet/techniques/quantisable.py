"""Which layers int8 and int4 techniques work on, and what they need of the chip."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from whet.machine import Machine
from whet.workload import Subject

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d)

_INT8_PRODUCTS = frozenset({"avx512_vnni", "avx_vnni", "amx_int8"})
_NATIVE_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "arm_bf16"})


def find_layers(module: nn.Module, kinds: Sequence[type[nn.Module]] = LAYERS) -> Iterator[tuple[str, nn.Module]]:
    """Layers with matrix products whose weights are float32, by name. Subclasses may do something else: left out."""
    for name, layer in module.named_modules():
        if type(layer) in kinds and weight_of(layer).dtype == torch.float32:
            yield name, layer


def find_linears(module: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """The linear layers of find_layers."""
    for name, layer in find_layers(module, (nn.Linear,)):
        assert isinstance(layer, nn.Linear)
        yield name, layer


def weight_of(layer: nn.Module) -> Tensor:
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return weight


def has_int8_products(machine: Machine) -> bool:
    return not _INT8_PRODUCTS.isdisjoint(machine.isa)


def has_bfloat16(machine: Machine) -> bool:
    return not _NATIVE_BFLOAT16.isdisjoint(machine.isa)


def refusal(subject: Subject, machine: Machine, *, rest: str) -> str:
    """Why quantising on this CPU is out of the question, or ""."""
    if subject.flat_inputs[0][0].device.type != "cpu":
        return "written for CPUs; the inputs are on a GPU"
    if not any(find_layers(subject.workload.model)):
        return "the model has no linear layer or convolution with float32 weights"
    if rest == "bfloat16" and not has_bfloat16(machine):
        return f"{machine.chip} has no native bfloat16 for what is not quantised; use rest=float32"
    return ""
