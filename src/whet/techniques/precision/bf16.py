"""Compute in bfloat16: half the bytes of float32, the same range, 8 bits of precision.

What            Parameters and activations become bfloat16; inputs and outputs stay float32. Batch-norm statistics and
                rotary frequencies stay float32, and integers are not converted.
When it helps   Chips with bfloat16 in hardware (AVX-512 BF16, AMX, Arm BF16, CUDA from sm_80), on large products.
When it hurts   Chips without it: refused there. Tiny models, where casting the inputs and outputs costs as much as is
                gained.
Numerics        About 3 significant digits: 1e-2 relative is usual at the output; the range is that of float32.
Composes        Alone in its group (precision); with every structure, layout, compiler and thread count.
Source          Kalamkar et al., "A Study of BFLOAT16", 2019 (arXiv:1905.12322); torch.nn.Module.to.
"""

import torch

from whet.core.workload import ExaminedWorkload
from whet.measure.machine import Machine
from whet.profiling.model.diagnosis import speedup_bound
from whet.techniques.rewriting.low_precision import bfloat16_refusal, to_half
from whet.techniques.technique import (
    PRECISION,
    Applicability,
    Applies,
    Candidate,
    NoOptions,
    NotApplicable,
    Stage,
    Technique,
)


def check(examined: ExaminedWorkload, machine: Machine, options: NoOptions) -> Applicability:
    if reason := bfloat16_refusal(examined, machine):
        return NotApplicable(reason)
    return Applies(f"{machine.gpu if examined.device_type == 'cuda' else machine.chip} computes bfloat16 natively")


def apply(candidate: Candidate, options: NoOptions) -> Candidate:
    """Return the candidate in bfloat16.

    Raises:
        TargetError: The outputs overflow.
    """
    return to_half(candidate, torch.bfloat16, "bf16")


TECHNIQUE = Technique(
    name="bf16",
    stage=Stage.PRECISION,
    order=10,
    card=__doc__,
    check=check,
    predict=lambda profile, limits, options: speedup_bound(
        profile, limits, dtype="bfloat16", weight_scale=0.5, activation_scale=0.5
    ),
    apply=apply,
    groups=frozenset({PRECISION}),
    dtype_of=lambda options: "bfloat16",
)
