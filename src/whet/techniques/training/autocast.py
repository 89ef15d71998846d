"""Compute forward and backward in bfloat16 where that is safe, with parameters and gradients in float32.

What            The model's forward runs inside torch.autocast: products and attention in bfloat16, sensitive operators
                in float32. What forward returns is float32 again, so that a loss outside is computed in float32.
When it helps   Models whose products take most of the step, on processors that multiply bfloat16 (AVX512-BF16, AMX).
When it hurts   Small products, where casting the weights in each step costs more than it saves.
Numerics        About 3 significant digits in products; gradients differ by 1e-2 relative. The loss stays float32.
Composes        Alone in its group (precision); with compile, which drops many of the casts.
Source          Micikevicius et al., 2017, arXiv:1710.03740; PyTorch documentation, "Automatic Mixed Precision".
"""

import torch

from whet.measure.machine import Machine
from whet.techniques.mechanisms.autocast_forward import AutocastForward
from whet.techniques.mechanisms.module_class import extend
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.technique import PRECISION, Applicability, Applies, NoOptions, NotApplicable
from whet.techniques.training_technique import Exactness, TrainingStage, TrainingTechnique


def check(parts: Parts, machine: Machine, options: NoOptions) -> Applicability:
    kinds = {p.dtype for p in parts.model.parameters()}
    if torch.float32 not in kinds:
        return NotApplicable("the parameters are not float32")
    if not machine.computes_bfloat16(parts.device_type):
        return NotApplicable("the processor does not multiply bfloat16: it would emulate it")
    return Applies("products in bfloat16, parameters in float32")


def apply(parts: Parts, options: NoOptions) -> Parts:
    extend(parts.model, AutocastForward)
    return parts


TECHNIQUE = TrainingTechnique(
    name="autocast",
    stage=TrainingStage.PRECISION,
    order=10,
    card=__doc__,
    exactness=Exactness.ROUNDED,
    check=check,
    predict=lambda profile, limits, options: profile.bound_in_fewer_bits(profile.share_left(limits, "bfloat16")),
    apply=apply,
    groups=frozenset({PRECISION}),
    predict_memory=lambda memory, options: memory.left(other=0.5),  # activations are half as large
)
