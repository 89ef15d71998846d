"""Have cuDNN time its algorithms for each convolution, and take the fastest.

What            torch.backends.cudnn.benchmark: the first call with a shape tries the algorithms; later calls use the
                best.
When it helps   Convolutions on a GPU over batches of one size.
When it hurts   Batches of ever-changing sizes: each new one is timed first. Each run may choose another algorithm.
Numerics        Sums in another order: 1e-6 relative in float32.
Composes        With everything. It holds for the whole process.
Source          PyTorch documentation, torch.backends.cudnn.benchmark; PyTorch "Performance Tuning Guide".
"""

import torch
from torch import nn

from whet.measure.machine import Machine
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.technique import Applicability, Applies, NoOptions, NotApplicable
from whet.techniques.training_technique import Exactness, TrainingStage, TrainingTechnique

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def check(parts: Parts, machine: Machine, options: NoOptions) -> Applicability:
    if parts.device_type != "cuda":
        return NotApplicable("the model is on the CPU; cuDNN computes on a GPU")
    number = sum(isinstance(module, _CONVOLUTIONS) for module in parts.model.modules())
    if not number:
        return NotApplicable("the model has no convolutions")
    if torch.backends.cudnn.benchmark:
        return NotApplicable("cuDNN times its algorithms already")
    if torch.backends.cudnn.deterministic:
        return NotApplicable("torch.backends.cudnn.deterministic asks for one algorithm")
    return Applies(f"{number} convolutions")


def apply(parts: Parts, options: NoOptions) -> Parts:
    torch.backends.cudnn.benchmark = True
    return parts


TECHNIQUE = TrainingTechnique(
    name="cudnn_benchmark",
    stage=TrainingStage.RUNTIME,
    order=30,
    card=__doc__,
    exactness=Exactness.EXACT,
    check=check,
    predict=lambda profile, limits, options: profile.bound(products_s=profile.reaching_limit_s(limits)),
    apply=apply,
)
