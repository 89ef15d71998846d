"""Quantise linear layers to int8, with ranges of activations found anew at each call.

What            Weights become int8, one scale per output channel. Each activation is quantised to uint8 with one scale
                per tensor, from its own smallest and largest value. `rest`: what all other operators compute in.
When it helps   Chips with int8 products (VNNI, AMX), large linear layers, no representative calibration batches.
When it hurts   Finding the range reads each activation once more: int8_static is faster where its quality holds.
                Convolutions stay in floating point. Without a compiler that fuses, it is slower than the original.
Numerics        8 bits per value: 1e-2 relative at the output is usual.
Composes        Alone in its group (precision); needs a backend that fuses. After structure; layers that the candidate
                keeps stay in floating point.
Source          torchao, "PyTorch 2 Export Quantization with X86 Backend". One scale per token (torchao's
                Int8DynamicActivationInt8WeightConfig) is closer to floating point than one per tensor, but inductor
                runs it slower.
"""

from dataclasses import dataclass

from whet.core.workload import ExaminedWorkload
from whet.measure.machine import Machine
from whet.profiling.model.diagnosis import speedup_bound
from whet.techniques.quantisation import pt2e, quantisable
from whet.techniques.rewriting.unquantised_dtype import REST, with_rest
from whet.techniques.technique import (
    BACKEND,
    PRECISION,
    Applicability,
    Applies,
    Candidate,
    NotApplicable,
    Stage,
    Technique,
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Hold the options of int8_dynamic.

    Attributes:
        rest: What all other operators compute in: "float32" or "bfloat16".
    """

    rest: str = "bfloat16"


def check(examined: ExaminedWorkload, machine: Machine, options: Options) -> Applicability:
    if reason := quantisable.refusal(examined, machine, rest=options.rest):
        return NotApplicable(reason)
    if not quantisable.has_int8_products(machine):
        return NotApplicable(f"{machine.chip} has no int8 products (VNNI or AMX)")
    num_layers = len(quantisable.linears_of(examined))
    if num_layers == 0:
        return NotApplicable("the model has no linear layer; convolutions are quantised by static ranges only")
    return Applies(f"{num_layers} linear layers; needs a compiler")


def apply(candidate: Candidate, options: Options) -> Candidate:
    return candidate.with_module(with_rest(pt2e.quantise(candidate, None), options.rest, candidate))


TECHNIQUE = Technique(
    name="int8_dynamic",
    stage=Stage.PRECISION,
    order=60,
    card=__doc__,
    options=Options,
    check=check,
    predict=lambda profile, limits, options: speedup_bound(
        profile, limits, dtype="int8", weight_scale=0.25, activation_scale=0.25
    ),
    apply=apply,
    space={"rest": REST},
    groups=frozenset({PRECISION}),
    needs=frozenset({BACKEND}),
    reads_kept=True,
    dtype_of=lambda options: "int8",
)
