"""Multiply in 8-bit floats in forward and backward.

What            Linear layers multiply through torchao.float8: inputs, weights and gradients are scaled, each tensor by
                one number, and cast to 8-bit floats. All else runs inside autocast to bfloat16, also the last layer.
When it helps   GPUs whose tensor cores multiply 8-bit floats (compute capability 8.9 and later), with large products;
                with compile, which fuses the scaling.
When it hurts   Small products: scaling costs more than it saves. Other GPUs and CPUs would emulate it: refused.
Numerics        2 to 3 bits of mantissa in products; the held-out loss must be compared. Parameters stay float32.
Composes        Alone in its group (precision); with compile.
Source          Micikevicius et al., 2022, arXiv:2209.05433; torchao documentation, float8 training.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from whet.measure.machine import Limits, Machine
from whet.techniques.costs.step_profile import StepProfile
from whet.techniques.mechanisms.autocast_forward import AutocastForward
from whet.techniques.mechanisms.blocks import head_of
from whet.techniques.mechanisms.module_class import AddedForward, extend
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.technique import PRECISION, Applicability, Applies, NoOptions, NotApplicable
from whet.techniques.training_technique import Exactness, TrainingStage, TrainingTechnique

_ADA = (8, 9)  # the first compute capability with products of 8-bit floats
_MULTIPLE = 16  # of the sizes that such products take


class Float8Forward(AddedForward):
    """Multiply in 8-bit floats while the model trains."""

    emulates = False

    def forward(self: Any, x: Tensor) -> Tensor:
        """Return x W^T + b, in the dtype that autocast asks for."""
        if not (self.training and torch.is_grad_enabled()):
            return super().forward(x)  # type: ignore[misc,no-any-return]
        from torchao.float8.float8_linear import matmul_with_hp_or_float8_args

        kind = x.device.type
        if torch.is_autocast_enabled(kind):
            x = x.to(torch.get_autocast_dtype(kind))
        settings = _settings(self.emulates)
        multiply: Any = matmul_with_hp_or_float8_args.apply
        out: Tensor = multiply(x, self.weight.t(), settings.linear_mm_config, settings.config)
        return out if self.bias is None else out + self.bias.to(out.dtype)


@cache
def _settings(emulates: bool) -> Any:
    """Return a layer of torchao's without memory, which holds the settings of the products."""
    from torchao.float8 import Float8LinearConfig
    from torchao.float8.float8_linear import Float8Linear

    with torch.device("meta"):
        config = Float8LinearConfig(pad_inner_dim=True, emulate=emulates)
        return Float8Linear(_MULTIPLE, _MULTIPLE, bias=False, config=config)  # type: ignore[no-untyped-call]


def check(parts: Parts, machine: Machine, options: NoOptions) -> Applicability:
    if parts.device_type != "cuda":
        return NotApplicable("the model is on the CPU, which would emulate products of 8-bit floats")
    capability = (machine.gpus[0].capability if machine.gpus else None) or (0, 0)
    if capability < _ADA:
        found = ".".join(map(str, capability))
        return NotApplicable(f"the GPU has compute capability {found}; products of 8-bit floats need 8.9")
    layers = layers_of(parts.model)
    if not layers:
        return NotApplicable("no hidden linear layer in float32 has sizes that are multiples of 16")
    return Applies(f"{len(layers)} linear layers")


def layers_of(model: nn.Module) -> list[nn.Linear]:
    """Return the linear layers that can multiply in 8-bit floats, without the last one."""
    head = head_of(model, least_outputs=1)
    return [
        module
        for module in model.modules()
        if isinstance(module, nn.Linear)
        and module is not head
        and module.weight.dtype is torch.float32
        and module.in_features % _MULTIPLE == module.out_features % _MULTIPLE == 0
    ]


def predict(profile: StepProfile, limits: Limits, options: NoOptions) -> float:
    fast = limits.gemm.get("float8_e4m3fn", 2 * limits.gemm.get("bfloat16", 0.0))
    gain = max(fast / limits.gemm.get("float32", 1.0), 1.0)
    return profile.bound_in_fewer_bits(1 / gain)


def apply(parts: Parts, options: NoOptions) -> Parts:
    for layer in layers_of(parts.model):
        extend(layer, Float8Forward)
    extend(parts.model, AutocastForward)
    return parts


TECHNIQUE = TrainingTechnique(
    name="fp8",
    stage=TrainingStage.PRECISION,
    order=20,
    card=__doc__,
    exactness=Exactness.ROUNDED,
    check=check,
    predict=predict,
    apply=apply,
    groups=frozenset({PRECISION}),
)
