"""Keep images and weights of convolutions with the channels last in memory.

What            The model's four-dimensional weights get the memory order N, H, W, C; convolutions pass it on.
When it helps   Convolutions on CPUs and tensor cores, whose kernels work channel by channel in one place.
When it hurts   Models that reshape between convolutions, which copies back and forth.
Numerics        Sums in another order: 1e-6 relative in float32.
Composes        With everything.
Source          PyTorch tutorial, "Channels Last Memory Format in PyTorch".
"""

import torch
from torch import nn

from whet.measure.machine import Machine
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.technique import Applicability, Applies, NoOptions, NotApplicable
from whet.techniques.training_technique import Exactness, TrainingStage, TrainingTechnique


def check(parts: Parts, machine: Machine, options: NoOptions) -> Applicability:
    layers = [m for m in parts.model.modules() if isinstance(m, nn.Conv2d | nn.ConvTranspose2d)]
    if not layers:
        return NotApplicable("the model has no convolutions over images")
    if all(layer.weight.is_contiguous(memory_format=torch.channels_last) for layer in layers if layer.in_channels > 1):
        return NotApplicable("the weights have their channels last already", is_so=True)
    return Applies(f"{len(layers)} convolutions")


def apply(parts: Parts, options: NoOptions) -> Parts:
    parts.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return parts


TECHNIQUE = TrainingTechnique(
    name="channels_last",
    stage=TrainingStage.LAYOUT,
    order=10,
    card=__doc__,
    exactness=Exactness.EXACT,
    check=check,
    predict=lambda profile, limits, options: profile.bound(
        products_s=profile.reaching_limit_s(limits), other_s=profile.other_s / 2
    ),
    apply=apply,
)
