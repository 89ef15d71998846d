"""Let products of float32 matrices be rounded inside: to bfloat16 on a CPU, to TensorFloat-32 on a GPU.

What            torch.set_float32_matmul_precision: "medium" on a CPU, where oneDNN multiplies in bfloat16 and adds up
                in float32; "high" on a GPU. All tensors stay float32.
When it helps   Models whose products take most of the step, and whose code depends on float32 tensors elsewhere.
When it hurts   It saves no memory, and small products gain less than autocast gives them. Convolutions on a CPU and
                fused attention are as before.
Numerics        Factors have about 3 significant digits in bfloat16 and 4 in TensorFloat-32. Sums are float32.
Composes        Alone in its group (precision); with compile. It holds for the whole process.
Source          PyTorch documentation, torch.set_float32_matmul_precision; NVIDIA, "TensorFloat-32 in the A100 GPU".
"""

import torch

from whet.measure.machine import Limits, Machine
from whet.techniques.costs.step_profile import StepProfile
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.technique import PRECISION, Applicability, Applies, NoOptions, NotApplicable
from whet.techniques.training_technique import Exactness, TrainingStage, TrainingTechnique


def check(parts: Parts, machine: Machine, options: NoOptions) -> Applicability:
    if torch.float32 not in {p.dtype for p in parts.model.parameters()}:
        return NotApplicable("the parameters are not float32")
    if not machine.computes_bfloat16(parts.device_type):
        return NotApplicable("the processor does not multiply bfloat16 or TensorFloat-32: it would emulate it")
    if torch.get_float32_matmul_precision() != "highest":
        return NotApplicable("products of float32 are rounded inside already")
    return Applies("products of float32 matrices are rounded inside")


def predict(profile: StepProfile, limits: Limits, options: NoOptions) -> float:
    dtype = "tfloat32" if "tfloat32" in limits.gemm else "bfloat16"
    return profile.bound(products_s=profile.products_s * profile.share_left(limits, dtype))


def apply(parts: Parts, options: NoOptions) -> Parts:
    torch.set_float32_matmul_precision("medium" if parts.device_type == "cpu" else "high")
    return parts


TECHNIQUE = TrainingTechnique(
    name="matmul_precision",
    stage=TrainingStage.PRECISION,
    order=20,
    card=__doc__,
    exactness=Exactness.ROUNDED,
    check=check,
    predict=predict,
    apply=apply,
    groups=frozenset({PRECISION}),
)
