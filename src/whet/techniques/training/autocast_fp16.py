"""Compute forward and backward in float16 with a dynamic loss scale, parameters and gradients in float32.

What            The model's forward runs inside torch.autocast in float16; what it returns is float32 again. Gradients
                are multiplied by a scale inside the model and divided by it where they leave it, so that clipping and
                accumulation see true ones. A step whose gradients overflowed is skipped; the scale falls by
                backoff_factor, and grows by growth_factor after growth_interval good steps. The loop calls no scaler.
When it helps   GPUs without bfloat16 (V100, T4), and processors that multiply float16 (AVX512-FP16, AMX-FP16).
When it hurts   Small products. Where there is bfloat16, autocast needs no scale. The model's forward is not compiled.
Numerics        About 4 significant digits in products; gradients differ by 1e-3 relative. The first steps may be
                skipped until the scale fits. The optimiser's checkpoint holds the scale.
Composes        Alone in its group (precision); not with optimizer_in_backward, which updates before an overflow is
                known.
Source          Micikevicius et al., 2017, arXiv:1710.03740; PyTorch documentation, torch.amp.GradScaler.
"""

from dataclasses import asdict, dataclass

import torch
from torch import nn

from whet.measure.machine import Limits, Machine
from whet.techniques.costs.step_profile import StepProfile
from whet.techniques.mechanisms.loss_scale import LossScale, scale_gradients
from whet.techniques.mechanisms.optimizers import EARLY, needs_closure
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.mechanisms.uses import Use
from whet.techniques.technique import PRECISION, Applicability, Applies, NotApplicable
from whet.techniques.training_technique import Exactness, TrainingStage, TrainingTechnique


@dataclass(frozen=True, kw_only=True)
class Options:
    """Hold the options of autocast_fp16. They are those of torch.amp.GradScaler.

    Attributes:
        init_scale: The scale of the first step.
        growth_factor: What the scale is multiplied by after growth_interval steps without an overflow.
        backoff_factor: What it is multiplied by after an overflow.
        growth_interval: Steps without an overflow until the scale grows.
    """

    init_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000


def check(parts: Parts, machine: Machine, options: Options) -> Applicability:
    """Check that the device multiplies float16, and that every gradient can be divided by the scale."""
    if not (
        options.init_scale > 0
        and options.growth_factor > 1
        and 0 < options.backoff_factor < 1
        and options.growth_interval >= 1
    ):
        return NotApplicable("the scale must be positive, grow by more than 1, and fall by a factor between 0 and 1")
    if needs_closure(parts.optimizer):
        return NotApplicable(
            f"{type(parts.optimizer).__name__} computes the loss anew in its step, which may not be skipped"
        )
    trained = [p for p in parts.model.parameters() if p.requires_grad]
    if not trained or {p.dtype for p in trained} != {torch.float32} or len({p.device for p in trained}) > 1:
        return NotApplicable("the trained parameters are not all float32 on one device")
    if not machine.computes_float16(parts.device_type):
        return NotApplicable("the processor does not multiply float16: it would emulate it")
    if any(isinstance(m, nn.RNNBase) for m in parts.model.modules()):
        return NotApplicable("recurrent layers keep lists of their weights, whose gradients would stay scaled")
    if isinstance(parts.optimizer, torch.optim.LBFGS):
        return NotApplicable("LBFGS computes several losses in a step")
    held = {id(p) for group in parts.optimizer.param_groups for p in group["params"]}
    if any(id(p) not in held for p in trained):
        return NotApplicable("another optimiser updates some parameters, and would not skip steps that overflowed")
    return Applies("products in float16, parameters in float32, a dynamic loss scale")


def predict(profile: StepProfile, limits: Limits, options: Options) -> float:
    gain = max(limits.gemm.get("float16", 0.0) / limits.gemm.get("float32", 1.0), 1.0)
    return profile.bound_in_fewer_bits(1 / gain)


def apply(parts: Parts, options: Options) -> Parts:
    scale_gradients(parts.model, parts.optimizer, LossScale(parts.model, **asdict(options)))
    return parts


TECHNIQUE = TrainingTechnique(
    name="autocast_fp16",
    stage=TrainingStage.OPTIMIZER,
    order=85,  # the optimiser that steps is known
    card=__doc__,
    options=Options,
    exactness=Exactness.ROUNDED,
    check=check,
    predict=predict,
    apply=apply,
    space={
        "init_scale": (65536.0, 1024.0),
        "growth_factor": (2.0,),
        "backoff_factor": (0.5,),
        "growth_interval": (2000,),
    },
    groups=frozenset({PRECISION, EARLY}),
    predict_memory=lambda memory, options: memory.left(other=0.5),  # activations are half as large
    refuses={Use.FSDP2: "the loss scale takes the place of parameters that fully_shard exchanges in each forward"},
)
