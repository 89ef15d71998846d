"""Keep convolution activations channels-last (NHWC), the order in which fast kernels read them.

What            4-d parameters and inputs move to `torch.channels_last`; shapes stay (N, C, H, W).
When it helps   Convolutions on CPUs through oneDNN; tensor cores in half precision.
When it hurts   Few channels (< 16), or many operators without an NHWC kernel: each adds a copy.
Numerics        The same arithmetic in another order: within 1e-5 relative in float32.
Composes        With every precision; before any backend.
Source          PyTorch tutorial "Channels Last Memory Format in PyTorch".
"""

import torch
from torch import Tensor, nn

from whet.core.workload import ExaminedWorkload
from whet.measure.machine import Machine
from whet.profiling.model.diagnosis import speedup_bound
from whet.techniques.technique import Applicability, Applies, Candidate, NoOptions, NotApplicable, Stage, Technique

_CONVOLUTIONS = frozenset({"Conv2d", "ConvTranspose2d"})


def check(examined: ExaminedWorkload, machine: Machine, options: NoOptions) -> Applicability:
    num_convolutions = sum(isinstance(m, nn.Conv2d | nn.ConvTranspose2d) for m in examined.workload.model.modules())
    if num_convolutions == 0:
        return NotApplicable("the model has no 2-d convolution")
    return Applies(f"{num_convolutions} convolutions")


def apply(candidate: Candidate, options: NoOptions) -> Candidate:
    module = candidate.copy_module().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return candidate.with_module(_ChannelsLast(module))


class _ChannelsLast(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        turned = (x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x for x in tensors)
        return self.module(*turned)  # type: ignore[no-any-return]


TECHNIQUE = Technique(
    name="channels_last",
    stage=Stage.LAYOUT,
    order=10,
    card=__doc__,
    check=check,
    predict=lambda profile, limits, options: speedup_bound(profile, limits, dtype=profile.dtype, kinds=_CONVOLUTIONS),
    apply=apply,
)
