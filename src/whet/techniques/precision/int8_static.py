"""Quantise linear layers and convolutions to int8, with the ranges of activations fixed beforehand.

What            Weights become int8, one scale per output channel. Activations become uint8, one scale per tensor, which
                `calibration` (minmax, percentile, entropy) chooses from the calibration batches. Batch norms are folded
                first. `rest`: what all other operators compute in.
When it helps   Chips with int8 products (VNNI, AMX), on large linear layers and convolutions, compiled.
When it hurts   Without a compiler that fuses, the graph dequantises and multiplies in floating point, and is slower
                than the original. Activations with outliers lose precision, and so does a model whose calibration
                batches differ from real inputs.
Numerics        8 bits per value: a few percent relative at the output is usual. keep_precision gives some back.
Composes        Alone in its group (precision); needs a backend that fuses. After structure; layers that the candidate
                keeps stay in floating point.
Source          Jacob et al., 2017 (arXiv:1712.05877); torchao, "PyTorch 2 Export Quantization with X86 Backend".
"""

from dataclasses import dataclass

from whet.core.workload import ExaminedWorkload
from whet.errors import OptionError
from whet.measure.machine import Machine
from whet.profiling.model.diagnosis import speedup_bound
from whet.techniques.quantisation import pt2e, quantisable
from whet.techniques.quantisation.observers import OBSERVERS
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
    """Hold the options of int8_static.

    Attributes:
        calibration: How the ranges are chosen from the batches: "minmax", "percentile" or "entropy".
        rest: What all other operators compute in: "float32" or "bfloat16".
    """

    calibration: str = "minmax"
    rest: str = "bfloat16"


def check(examined: ExaminedWorkload, machine: Machine, options: Options) -> Applicability:
    if reason := quantisable.refusal(examined, machine, rest=options.rest):
        return NotApplicable(reason)
    if not quantisable.has_int8_products(machine):
        return NotApplicable(f"{machine.chip} has no int8 products (VNNI or AMX)")
    num_layers = len(quantisable.layers_of(examined))
    return Applies(f"{num_layers} layers, {len(examined.workload.calibration)} calibration batches; needs a compiler")


def apply(candidate: Candidate, options: Options) -> Candidate:
    """Return the candidate as a quantised graph, with the ranges found on the calibration batches.

    Raises:
        OptionError: `calibration` has an unknown value.
    """
    if options.calibration not in OBSERVERS:
        raise OptionError(f"calibration must be one of {', '.join(OBSERVERS)}, not {options.calibration!r}")
    quantised = pt2e.quantise(candidate, OBSERVERS[options.calibration])
    return candidate.with_module(with_rest(quantised, options.rest, candidate))


TECHNIQUE = Technique(
    name="int8_static",
    stage=Stage.PRECISION,
    order=50,
    card=__doc__,
    options=Options,
    check=check,
    predict=lambda profile, limits, options: speedup_bound(
        profile, limits, dtype="int8", weight_scale=0.25, activation_scale=0.25
    ),
    apply=apply,
    space={"calibration": ("minmax", "percentile", "entropy"), "rest": REST},
    groups=frozenset({PRECISION}),
    needs=frozenset({BACKEND}),
    reads_kept=True,
    dtype_of=lambda options: "int8",
)
