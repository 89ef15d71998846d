"""Leave the layers that int8 would hurt most in floating point.

What            Each layer is quantised alone on calibration batches. The `layers` whose rounding moves the outputs most
                are marked, and techniques that lower the precision later leave them as they are.
When it helps   int8 is fast enough but loses more quality than is allowed. Often a few layers with outliers do most of
                the damage (the first, the last, the second of an MLP).
When it hurts   Each layer that is kept gains no speed. Alone it changes nothing.
Numerics        None of its own.
Composes        Before every int8 and 4-bit technique and backend that reads the candidate's `kept`.
Source          Nagel et al., 2021 (arXiv:2106.08295), section 3.7; Wu et al., 2020 (arXiv:2004.09602), section 6.1.
"""

from dataclasses import dataclass, replace

from whet.core.workload import ExaminedWorkload
from whet.errors import OptionError, TargetError
from whet.measure.machine import Machine
from whet.techniques.quantisation import quantisable
from whet.techniques.quantisation.sensitivity import rank_layers
from whet.techniques.technique import Applicability, Applies, Candidate, NotApplicable, Stage, Technique


@dataclass(frozen=True, kw_only=True)
class Options:
    """Hold the options of keep_precision.

    Attributes:
        layers: How many of the most sensitive layers stay in floating point.
    """

    layers: int = 2


def check(examined: ExaminedWorkload, machine: Machine, options: Options) -> Applicability:
    """Check that the model has more layers to quantise than are to be kept."""
    if options.layers < 1:
        raise OptionError(f"layers must be at least 1, not {options.layers}")
    if reason := quantisable.device_refusal(examined):
        return NotApplicable(reason)
    num_layers = len(quantisable.layers_of(examined))
    if num_layers == 0:
        return NotApplicable("the model has no linear layer or convolution with float32 weights")
    if num_layers <= options.layers:
        return NotApplicable(
            f"the model has {num_layers} layers to quantise; keeping {options.layers} would leave none"
        )
    return Applies(f"{options.layers} of {num_layers} layers stay in float")


def apply(candidate: Candidate, options: Options) -> Candidate:
    """Return the candidate with its most sensitive layers marked.

    Raises:
        TargetError: The module has no layer to quantise.
    """
    module = quantisable.with_linears(candidate.copy_module())
    ranked = rank_layers(module, candidate.examined.flat_calibration)
    if not ranked:
        raise TargetError("keep_precision finds no layer in the module; leave it out of the recipe")
    names = [name for name, _ in ranked[: options.layers]]
    note = f"keep_precision: {', '.join(names)} stay in float"
    return replace(candidate, kept=candidate.kept | frozenset(names), notes=(*candidate.notes, note))


TECHNIQUE = Technique(
    name="keep_precision",
    stage=Stage.PRECISION,
    order=40,
    card=__doc__,
    options=Options,
    check=check,
    apply=apply,
    space={"layers": (2, 4, 8, 16)},
    restores_quality=True,
)
