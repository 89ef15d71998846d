"""Keep AdamW's two moments in 8 bits.

What            torchao's AdamW8bit in place of AdamW: both moments in blocks of 256 numbers with a scale each.
When it helps   The optimiser's state takes much of the memory: 2 bytes a parameter in place of 8.
When it hurts   The first step compiles for seconds for each shape; a step is slower where it is bound by arithmetic.
Numerics        Rounded moments: the held-out loss must be compared. Small tensors stay in float32.
Composes        Alone in its group (optimizer); not with optimizer_in_backward.
Source          Dettmers et al., 2021, arXiv:2110.02861; torchao documentation, low-bit optimizers.
"""

from dataclasses import replace

import torch

from whet.core.artefact.inductor import missing_tools
from whet.measure.machine import Machine
from whet.techniques.mechanisms.optimizers import OPTIMIZER, replaced, why_not_replaced
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.technique import Applicability, Applies, NoOptions, NotApplicable
from whet.techniques.training_technique import Exactness, TrainingStage, TrainingTechnique


def check(parts: Parts, machine: Machine, options: NoOptions) -> Applicability:
    missing = missing_tools(at_load=True, device=parts.device_type)
    if reason := why_not_replaced(parts.optimizer, torch.optim.AdamW) or missing:
        return NotApplicable(reason)
    return Applies("moments of 2 bytes a parameter in place of 8")


def apply(parts: Parts, options: NoOptions) -> Parts:
    """Return the parts with moments in 8 bits. The learning rate becomes a tensor, which schedules fill."""
    from torchao.optim import AdamW8bit

    names = frozenset({"lr", "betas", "eps", "weight_decay", "amsgrad"})
    return replace(parts, optimizer=replaced(parts.optimizer, lambda groups: AdamW8bit(groups), names))


TECHNIQUE = TrainingTechnique(
    name="adamw_8bit",
    stage=TrainingStage.OPTIMIZER,
    order=30,
    card=__doc__,
    exactness=Exactness.OTHER,
    check=check,
    # parameters, gradients and moments of one byte each are moved
    predict=lambda profile, limits, options: profile.bound(
        optimizer_s=profile.least_optimizer_s(limits, bytes_per_parameter=16.0)
    ),
    apply=apply,
    keeps_dropout=True,
    groups=frozenset({OPTIMIZER}),
    # The state has 8 bits and scales in the place of 32.
    predict_memory=lambda memory, options: memory.left(optimizer=0.26),
)
