"""Store the weights of linear layers and embeddings in int8.

What            Weights become int8, one scale per output channel or embedding row, as in whet's engine with int8
                weights. Layers that see few rows multiply from int8 directly; on a chip with AVX-512 they use whet's
                own kernels, which round each row of activations to int8. Layers that see many rows unpack their weights
                at each call and leave activations as they are. `rest`: what all other operators compute in.
When it helps   Batch 1, one token at a time, where reading the weights takes the time. The file is a quarter of the
                size in every case.
When it hurts   Many rows: unpacking comes on top of a product whose time is arithmetic.
Numerics        Weights in 8 bits; products in bfloat16 where it is fast, or of 8-bit activations: 1e-2 relative at the
                output is usual. Where whet's kernels are missing, torch computes the same outputs, slowly.
Composes        Alone in its group (precision); with every backend that takes a traced module. Layers that the candidate
                keeps stay in floating point.
Source          Dettmers et al., 2022 (arXiv:2208.07339), section 2; torch's aten._weight_int8pack_mm.
"""

from dataclasses import dataclass

import torch
from torch import nn

from whet.core.workload import ExaminedWorkload
from whet.errors import TargetError
from whet.measure.machine import Machine
from whet.profiling.model.diagnosis import speedup_bound
from whet.techniques.quantisation import quantisable
from whet.techniques.quantisation.quantised_linear import Int8Embedding, int8_linear, replace_linears
from whet.techniques.rewriting.unquantised_dtype import REST, with_rest
from whet.techniques.technique import PRECISION, Applicability, Applies, Candidate, NotApplicable, Stage, Technique


@dataclass(frozen=True, kw_only=True)
class Options:
    """Hold the options of int8_weight.

    Attributes:
        rest: What all other operators compute in: "float32" or "bfloat16".
    """

    rest: str = "bfloat16"


def check(examined: ExaminedWorkload, machine: Machine, options: Options) -> Applicability:
    if reason := quantisable.refusal(examined, machine, rest=options.rest):
        return NotApplicable(reason)
    num_layers = len(quantisable.linears_of(examined))
    if num_layers == 0:
        return NotApplicable("the model has no linear layer")
    return Applies(f"{num_layers} linear layers")


def apply(candidate: Candidate, options: Options) -> Candidate:
    """Return the candidate with int8 weights.

    Raises:
        TargetError: The module has no linear layer to quantise.
    """
    module, num_layers, _ = replace_linears(candidate, int8_linear)
    if not num_layers:
        raise TargetError("int8_weight finds no linear layer to quantise; leave it out of the recipe")
    quantisable.swap(module, {m: Int8Embedding(m) for m in module.modules() if _is_plain_embedding(m)})  # type: ignore[arg-type]
    return candidate.with_module(with_rest(module, options.rest, candidate))


def _is_plain_embedding(module: nn.Module) -> bool:
    """Return whether a module is a float32 embedding without hooks, and without max_norm, which writes to it."""
    if type(module) is not nn.Embedding or not quantisable.is_plain(module):
        return False
    return module.max_norm is None and module.weight.dtype == torch.float32


TECHNIQUE = Technique(
    name="int8_weight",
    stage=Stage.PRECISION,
    order=70,
    card=__doc__,
    options=Options,
    check=check,
    # layers compute at the bfloat16 or the float32 limit, the higher one
    predict=lambda profile, limits, options: speedup_bound(
        profile, limits, dtype=limits.faster("bfloat16"), weight_scale=0.25, activation_scale=0.5
    ),
    apply=apply,
    space={"rest": REST},
    groups=frozenset({PRECISION}),
    reads_kept=True,
    dtype_of=lambda options: "bfloat16",
    weight_scale_of=lambda options: 0.25,
)
