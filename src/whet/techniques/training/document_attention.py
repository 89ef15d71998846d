"""Compute attention document by document, where a mask does nothing but keep the documents of packed rows apart.

What            Inside the model's repeated blocks, the mask of each scaled_dot_product_attention is looked at once. If
                it does exactly one thing, keep documents apart, each document is computed by itself: on a CPU by the
                fused kernel on views of the row, on a GPU by FlexAttention, which leaves out blocks of block_size
                tokens. For any other mask, and with dropout, PyTorch's own attention is called.
When it helps   Packed rows (PackedBatches, position_ids that begin again) with several documents in a long row: a dense
                mask costs the square of the row's length, documents the sum of their squares.
When it hurts   Hundreds of very short documents in a row: each is a call of a kernel. A mask that is made anew in every
                layer is looked at in every layer.
Numerics        The same numbers in another order of sums: 1e-6 relative in float32.
Composes        With everything. Beside product_attention each document is computed as products. In a compiled model it
                is one operator on a CPU; on a GPU the graph breaks at each attention.
Source          Krell et al., 2021, arXiv:2107.02027 (packing); Dao et al., 2022, arXiv:2205.14135 (the fused kernel);
                Dong et al., 2024, arXiv:2412.05496 (FlexAttention).
"""

from dataclasses import dataclass, replace

from whet.core.workload.blocks import repeated_blocks
from whet.measure.machine import Machine
from whet.techniques.mechanisms.module_class import extend
from whet.techniques.mechanisms.packing.document_masking import note_of_masks, with_block_size
from whet.techniques.mechanisms.packing.packed_masks import SEEN
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.technique import Applicability, Applies, NotApplicable, OptionSpace
from whet.techniques.training_technique import Exactness, TrainingStage, TrainingTechnique

_SPACE: OptionSpace = {"block_size": (128, 64, 256)}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Hold the options of document_attention.

    Attributes:
        block_size: The tokens of a block of FlexAttention, on a GPU: a power of 2, 16 or more.
    """

    block_size: int = _SPACE["block_size"][0]


def check(parts: Parts, machine: Machine, options: Options) -> Applicability:
    """Check that the model may call scaled_dot_product_attention, on a CPU or a CUDA GPU.

    What masks it gets is seen only in steps: in the profile of one, or in the notes after some.
    """
    size = options.block_size
    if parts.device_type not in ("cpu", "cuda"):
        return NotApplicable(f"the model is on {parts.device_type}; this is for a CPU or a CUDA GPU")
    if size < 16 or size & (size - 1):
        return NotApplicable(f"block_size must be a power of 2, 16 or more, not {size}")
    if size != Options().block_size and parts.device_type != "cuda":
        return NotApplicable("blocks are FlexAttention's, on a GPU; on a CPU each document is computed by itself")
    kind = getattr(getattr(parts.model, "config", None), "_attn_implementation", None)
    if kind not in (None, "sdpa"):
        return NotApplicable(
            f"the model computes attention by {kind!r}; load it with attn_implementation='sdpa', which takes a mask"
        )
    return Applies("attention within documents, where a mask does nothing but keep them apart")


def check_masks(within_documents: float) -> str:
    """Return that no mask keeps documents apart, where the step shows it."""
    if within_documents < 1:
        return ""
    return "no attention of a step has a mask that does nothing but keep the documents of packed rows apart"


def apply(parts: Parts, options: Options) -> Parts:
    SEEN.forget()
    kind = with_block_size(options.block_size)
    for module in repeated_blocks(parts.model) or [parts.model]:
        extend(module, kind)
    return replace(parts, later_notes=(*parts.later_notes, note_of_masks))


TECHNIQUE = TrainingTechnique(
    name="document_attention",
    stage=TrainingStage.STRUCTURE,
    order=15,
    card=__doc__,
    options=Options,
    exactness=Exactness.EXACT,
    check=check,
    check_masks=check_masks,
    predict=lambda profile, limits, options: profile.bound(attention_s=profile.attention_s * profile.within_documents),
    apply=apply,
    keeps_dropout=True,
    space=_SPACE,
)
