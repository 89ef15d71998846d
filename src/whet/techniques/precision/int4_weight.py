"""Store the weights of linear layers in 4 bits.

What            Weights become 4-bit numbers, with a scale for each output and an integer factor for each group of 32
                inputs. Both are chosen for the least squared error, as in whet's engine with int4 weights. Layers that
                see few rows multiply from 4 bits directly. On a chip with AVX-512 the large ones use whet's own
                kernels, which round each row of activations to int8. Layers that see many rows unpack their weights at
                each call. `rest`: what all other operators compute in.
When it helps   Batch 1, one token at a time, with weights far larger than the caches. The file is an eighth of the size
                in every case.
When it hurts   Many rows: unpacking comes on top. Small models lose more quality than large ones. With weights that fit
                in the cache, int8_weight is as fast.
Numerics        16 levels per group: several percent relative at the output is usual.
Composes        Alone in its group (precision); with every backend that takes a traced module. Layers that the candidate
                keeps, and those whose width is no multiple of 32, stay in floating point.
Source          Lin et al., 2024 (arXiv:2405.04532), for scales of two levels; torch's aten._weight_int4pack_mm_for_cpu.
"""

from dataclasses import dataclass

from torch import nn

from whet.core.workload import ExaminedWorkload
from whet.errors import OptionError, TargetError
from whet.kernels.linear.quantise import GROUP_SIZE
from whet.measure.machine import Machine
from whet.profiling.model.diagnosis import speedup_bound
from whet.techniques.quantisation import quantisable
from whet.techniques.quantisation.quantised_linear import int4_linear, replace_linears
from whet.techniques.rewriting.unquantised_dtype import REST, with_rest
from whet.techniques.technique import PRECISION, Applicability, Applies, Candidate, NotApplicable, Stage, Technique

_WEIGHT_SCALE = 0.125 + 0.25 / GROUP_SIZE  # of their bytes in float32: 4 bits each, and one byte for each group
_GROUP_SIZES = (GROUP_SIZE, 64, 128)  # recipes of earlier versions may have 64 or 128


@dataclass(frozen=True, kw_only=True)
class Options:
    """Hold the options of int4_weight.

    Attributes:
        group_size: The number of inputs that share a scale. It is always 32; 64 and 128, which old recipes name, are
            read as 32.
        rest: What all other operators compute in: "float32" or "bfloat16".
    """

    group_size: int = GROUP_SIZE
    rest: str = "bfloat16"


def check(examined: ExaminedWorkload, machine: Machine, options: Options) -> Applicability:
    if options.group_size not in _GROUP_SIZES:
        raise OptionError(f"group_size must be one of {', '.join(map(str, _GROUP_SIZES))}")
    if reason := quantisable.refusal(examined, machine, rest=options.rest):
        return NotApplicable(reason)
    layers = quantisable.linears_of(examined)
    num_fitting = sum(map(_fits, layers))
    if num_fitting == 0:
        return NotApplicable(f"no linear layer has inputs in groups of {GROUP_SIZE}")
    return Applies(f"{num_fitting} of {len(layers)} linear layers")


def apply(candidate: Candidate, options: Options) -> Candidate:
    """Return the candidate with 4-bit weights.

    Raises:
        TargetError: No linear layer of the module has a fitting width.
    """

    def make(layer: nn.Linear, num_rows: int) -> nn.Module | None:
        return int4_linear(layer, num_rows) if _fits(layer) else None

    module, num_layers, left = replace_linears(candidate, make)
    if not num_layers:
        raise TargetError("int4_weight finds no linear layer of a fitting width; leave it out of the recipe")
    notes = []
    if left:
        notes.append(f"int4_weight: {len(left)} of the layers stay in float, as their sizes don't fit ({left[0]}, ...)")
    if options.group_size != GROUP_SIZE:
        notes.append(f"int4_weight: group_size={options.group_size} is ignored, groups have {GROUP_SIZE} inputs")
    return candidate.with_module(with_rest(module, options.rest, candidate), *notes)


def _fits(layer: nn.Linear) -> bool:
    """Return whether the layer's inputs fill whole groups."""
    return layer.in_features % GROUP_SIZE == 0


TECHNIQUE = Technique(
    name="int4_weight",
    stage=Stage.PRECISION,
    order=80,
    card=__doc__,
    options=Options,
    check=check,
    # layers compute at the bfloat16 or the float32 limit, the higher one
    predict=lambda profile, limits, options: speedup_bound(
        profile, limits, dtype=limits.faster("bfloat16"), weight_scale=_WEIGHT_SCALE, activation_scale=0.5
    ),
    apply=apply,
    space={"rest": REST},
    groups=frozenset({PRECISION}),
    reads_kept=True,
    dtype_of=lambda options: "bfloat16",
    weight_scale_of=lambda options: _WEIGHT_SCALE,
)
