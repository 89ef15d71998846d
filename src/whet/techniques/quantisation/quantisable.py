"""Find the layers that int8 and int4 techniques can quantise, and check what they need of the chip."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from whet.core.artefact import program
from whet.core.workload import ExaminedWorkload
from whet.errors import TargetError
from whet.measure.machine import Machine

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d)

_INT8_PRODUCTS = frozenset({"avx512_vnni", "avx_vnni", "amx_int8"})


def with_linears(module: nn.Module) -> nn.Module:
    """The module with Hugging Face's Conv1D layers, changed in place to the linear layers they are."""
    return swap(module, {m: _as_linear(m) for m in module.modules() if is_transposed_linear(m)})


def is_transposed_linear(module: nn.Module) -> bool:
    """Return whether a module is transformers' Conv1D, as in GPT-2: a linear layer with a weight [inputs, outputs]."""
    is_conv1d = type(module).__name__ == "Conv1D" and type(module).__module__ == "transformers.pytorch_utils"
    return is_conv1d and is_plain(module)


def is_plain(module: nn.Module) -> bool:
    """Return whether a module does only what its class does, so that another module may replace it.

    A hook, or a forward that the instance overrides, may do anything to its inputs and outputs, for values that no
    calibration batch has.
    """
    return not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


def _as_linear(module: nn.Module) -> nn.Linear:
    weight, bias = weight_of(module), module.bias
    linear = nn.Linear(weight.shape[0], weight.shape[1], device="meta")
    linear.weight = nn.Parameter(weight.detach().T.contiguous(), requires_grad=False)
    assert isinstance(bias, nn.Parameter)
    linear.bias = bias
    return linear.eval()


def swap(module: nn.Module, replaced: Mapping[nn.Module, nn.Module]) -> nn.Module:
    """The module with others in the place of those given, under every name they have; changed in place."""
    for name, layer in list(module.named_modules(remove_duplicate=False)):
        if layer in replaced:
            module.set_submodule(name, replaced[layer])
    return module


def find_layers(module: nn.Module, kinds: Sequence[type[nn.Module]] = LAYERS) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers with matrix products whose weights are float32, with their names.

    Subclasses and layers with hooks are left out, since they may compute something else.
    """
    for name, layer in module.named_modules():
        if type(layer) in kinds and is_plain(layer) and weight_of(layer).dtype == torch.float32:
            yield name, layer


def find_linears(module: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    for name, layer in find_layers(module, (nn.Linear,)):
        assert isinstance(layer, nn.Linear)
        yield name, layer


def layers_of(examined: ExaminedWorkload) -> list[nn.Module]:
    """Return the original's layers that could be quantised, to count and measure them. Some hold no weights."""
    model = examined.workload.model
    transposed = [weight_of(m) for m in model.modules() if is_transposed_linear(m)]
    outlines = [nn.Linear(w.shape[0], w.shape[1], device="meta") for w in transposed if w.dtype == torch.float32]
    return [*(layer for _, layer in find_layers(model)), *outlines]


def linears_of(examined: ExaminedWorkload) -> list[nn.Linear]:
    return [layer for layer in layers_of(examined) if isinstance(layer, nn.Linear)]


def weight_of(layer: nn.Module) -> Tensor:
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return weight


def has_int8_products(machine: Machine) -> bool:
    return not _INT8_PRODUCTS.isdisjoint(machine.isa)


def has_wide_sums(machine: Machine) -> bool:
    """Return whether 8-bit products are summed in 32 bits; otherwise in 16 bits, which overflow at full range."""
    return has_int8_products(machine) or "neon" in machine.isa


def device_refusal(examined: ExaminedWorkload) -> str:
    """Return why whet's quantisers, which need a CPU, cannot be used on the inputs' device; "" where they can."""
    return "" if examined.device_type == "cpu" else "written for CPUs; the inputs are on a GPU"


def branch_refusal(examined: ExaminedWorkload) -> str:
    """Return why a model whose graph branches by value cannot be quantised; "" for all other models.

    Ranges come from the branches that the calibration batches take, and a rounded value may take another branch.
    """
    try:
        has_branches = program.has_branches(examined)
    except TargetError as error:
        return str(error)
    return "the model branches by value (torch.cond), where rounding may take the other branch" if has_branches else ""


def refusal(examined: ExaminedWorkload, machine: Machine, *, rest: str) -> str:
    """Return why a model cannot be quantised on this CPU; "" where it can."""
    if reason := device_refusal(examined):
        return reason
    if why := branch_refusal(examined):
        return why
    if not layers_of(examined):
        return "the model has no linear layer or convolution with float32 weights"
    if rest == "bfloat16" and not machine.computes_bfloat16():
        return f"{machine.chip} has no native bfloat16 for what is not quantised; use rest=float32"
    return ""
