"""Compute attention in bfloat16 as batches of products and a softmax, in chunks that stay in the processor's cache.

What            Inside the model's repeated blocks, scaled_dot_product_attention in bfloat16 is computed chunk by chunk,
                forward and backward, as products by oneDNN and a softmax. Attention with dropout, with groups of heads,
                or in float32 stays PyTorch's fused kernel.
When it helps   Training on a CPU that multiplies bfloat16: the fused kernel's backward is slow there.
When it hurts   With keep, the probabilities are kept for backward: heads x queries x keys x 2 bytes in each layer, half
                of it where attention is causal and long. Without, the scores are computed twice.
Numerics        Scores are rounded to bfloat16, as in attention written by hand inside autocast. Outputs differ from
                float64 by about 1.5 times what the fused kernel's do, gradients by about as much as its own.
Composes        Needs a technique that computes in bfloat16, and with checkpointing it is computed again.
Source          Dao et al., 2022, arXiv:2205.14135 (recomputation by blocks); Vaswani et al., 2017, arXiv:1706.03762.
"""

from dataclasses import dataclass

from whet.core.workload.blocks import repeated_blocks
from whet.measure.machine import Machine
from whet.techniques.mechanisms.module_class import extend
from whet.techniques.mechanisms.packing.unfused_attention import AttentionByProducts, AttentionComputedAgain
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.technique import PRECISION, Applicability, Applies, NotApplicable
from whet.techniques.training_technique import Exactness, TrainingStage, TrainingTechnique


@dataclass(frozen=True, kw_only=True)
class Options:
    """Hold the options of product_attention.

    Attributes:
        keep: Whether the probabilities are kept for backward, in place of being computed again.
    """

    keep: bool = True


def check(parts: Parts, machine: Machine, options: Options) -> Applicability:
    if parts.device_type != "cpu":
        return NotApplicable("the model is not on the CPU; elsewhere the fused kernels are faster")
    if not machine.computes_bfloat16("cpu"):
        return NotApplicable("the processor does not multiply bfloat16: it would emulate it")
    return Applies("attention by products, where it is computed in bfloat16 without dropout")


def apply(parts: Parts, options: Options) -> Parts:
    kind = AttentionByProducts if options.keep else AttentionComputedAgain
    for module in repeated_blocks(parts.model) or [parts.model]:
        extend(module, kind)
    return parts


TECHNIQUE = TrainingTechnique(
    name="product_attention",
    stage=TrainingStage.STRUCTURE,
    order=20,
    card=__doc__,
    options=Options,
    exactness=Exactness.ROUNDED,
    check=check,
    predict=lambda profile, limits, options: profile.bound(attention_s=0.0),
    apply=apply,
    space={"keep": (True, False)},
    needs=frozenset({PRECISION}),
)
