"""Let PyTorch choose bfloat16 operator by operator, with the weights left in float32.

What            The model runs inside torch.autocast: products cast their inputs to bfloat16, and sensitive operators
                stay in float32.
When it helps   Models that torch.export refuses, so that they cannot be converted. For all others bf16 is tried
                instead.
When it hurts   Every call casts every weight again, and activations back and forth: usually slower than bf16.
Numerics        About 3 significant digits in products, float32 elsewhere: 1e-2 relative is usual at the output.
Composes        Alone in its group (precision); with structure, layout and compilers, which drop some of the casts.
Source          PyTorch documentation, "Automatic Mixed Precision package - torch.amp".
"""

from whet.core.workload import ExaminedWorkload
from whet.measure.machine import Machine
from whet.profiling.model.diagnosis import speedup_bound
from whet.techniques.rewriting.low_precision import bfloat16_refusal
from whet.techniques.rewriting.precision_wrapper import PrecisionWrapper
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
    """Return the candidate inside torch.autocast. It shares its weights with the candidate given."""
    examined = candidate.examined
    wrapper = PrecisionWrapper(candidate.module, examined.outputs[0], autocast=examined.device_type)
    return candidate.with_module(wrapper)


TECHNIQUE = Technique(
    name="autocast",
    stage=Stage.PRECISION,
    order=30,
    card=__doc__,
    check=check,
    # layers reach the bfloat16 limit, and weights are still read as float32
    predict=lambda profile, limits, options: speedup_bound(profile, limits, dtype="bfloat16", activation_scale=0.5),
    apply=apply,
    groups=frozenset({PRECISION}),
    runs_python=True,
    instead="bf16",
    dtype_of=lambda options: "bfloat16",
)
