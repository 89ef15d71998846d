"""Compile the calls of a diffusion model, and multiply in 8-bit floats, where the chip and the packages are there."""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from whet.errors import MissingExtra, OptionError
from whet.measure.machine import describe
from whet.models.diffusion.frame_diffusion import Call
from whet.models.diffusion.names import check_backend_name
from whet.ui.figures import percent

_FLOAT8_FROM = (8, 9)  # the first compute capability that multiplies 8-bit floats
_MULTIPLE = 16  # of the sizes that such products take


def check_backend(name: str | None, device: torch.device) -> None:
    """Raise OptionError where there is no such backend, it is not installed, or it doesn't run on the device."""
    if name is None:
        return
    check_backend_name(name)
    if name == "tensorrt":
        if device.type != "cuda":
            raise OptionError("--backend tensorrt needs a GPU: give --device cuda too, or take inductor")
        if find_spec("torch_tensorrt") is None:
            raise OptionError(
                "--backend tensorrt needs torch-tensorrt, which is not installed: pip install torch-tensorrt, in the "
                f"version for PyTorch {torch.__version__}"
            )


def compiler(name: str, notes: list[str]) -> Callable[[str, Call], Call]:
    """Return what compiles a call, one engine for each set of shapes, by one of `names.BACKENDS`.

    A call whose compilation fails runs as it is from then on, and `notes` gets a sentence about it.
    """
    if name == "tensorrt":
        import torch_tensorrt  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: F401 - it registers

    def wrapper(call_name: str, call: Call) -> Call:
        compiled: Call | None = torch.compile(call, backend=name, dynamic=False)

        def run(*args: Any, **named: Any) -> Any:
            nonlocal compiled
            if compiled is not None:
                try:
                    return compiled(*args, **named)
                except Exception as error:  # noqa: BLE001 - compilers raise anything
                    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
                    notes.append(f"the {call_name} runs as it is, since {name} cannot compile it: {first}")
                    compiled = None
            return call(*args, **named)

        return run

    return wrapper


def check_float8(device: torch.device) -> None:
    """Check that the chip multiplies 8-bit floats, and that torchao is there.

    Raises:
        OptionError: The chip does not.
        MissingExtra: torchao is not installed.
    """
    if device.type != "cuda":
        raise OptionError("--dtype fp8: the CPU does not multiply 8-bit floats, and would emulate it; use float32")
    capability = (describe().gpus[0].capability if describe().gpus else None) or (0, 0)
    if tuple(capability) < _FLOAT8_FROM:
        found = ".".join(map(str, capability))
        raise OptionError(f"--dtype fp8: the GPU has compute capability {found}, and 8-bit floats need 8.9; use fp16")
    if find_spec("torchao") is None:
        raise MissingExtra("torchao", "compress", "--dtype fp8")


def float8_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """Return the linear layers whose sizes products of 8-bit floats take, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if type(module) is nn.Linear and module.in_features % _MULTIPLE == module.out_features % _MULTIPLE == 0
    }


def to_float8(models: Sequence[nn.Module], notes: list[str]) -> None:
    """Let the linear layers of models multiply in 8-bit floats, in place: weights and inputs have a scale a tensor.

    Convolutions and all else stay as they are. The models are on a GPU, in bfloat16 or float16. `notes` gets a sentence
    for each of them, which says what share of its weights multiplies so.
    """
    from torchao.quantization import Float8DynamicActivationFloat8WeightConfig, quantize_

    for model in models:
        layers = float8_layers(model)
        names = set(layers)
        whole = sum(parameter.numel() for parameter in model.parameters())
        fast = sum(layer.weight.numel() for layer in layers.values())
        share = percent(fast / whole, decimals=0)
        notes.append(f"{len(layers)} linear layers with {share} of the weights multiply in 8-bit floats")
        if layers:
            config = Float8DynamicActivationFloat8WeightConfig(set_inductor_config=False)
            quantize_(model, config, filter_fn=lambda module, name: name in names)  # noqa: B023 - it is called here
