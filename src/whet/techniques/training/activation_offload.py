"""Keep the activations of some blocks in the host's memory from forward to backward.

What            Tensors of 1 MB and more that a chosen part of the repeated blocks saves for backward are copied to
                pinned memory of the host, beside the GPU's work, and copied back when backward needs them.
When it helps   A GPU whose memory activations fill, with a fast bus: less arithmetic than checkpointing.
When it hurts   Where the bus is slower than the blocks compute. On a CPU there is no other memory, so it is refused.
Numerics        Bit-equal: the same numbers come back.
Composes        Alone in its group (activations).
Source          PyTorch tutorial, "Hooks for autograd saved tensors"; torchtune documentation, activation offloading.
"""

import math
from dataclasses import dataclass

from torch import nn

from whet.core.workload.blocks import repeated_blocks
from whet.measure.machine import Machine
from whet.techniques.mechanisms.blocks import ACTIVATIONS
from whet.techniques.mechanisms.module_class import extend
from whet.techniques.mechanisms.offloaded_activations import Offloaded
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.technique import Applicability, Applies, NotApplicable
from whet.techniques.training_technique import Exactness, TrainingStage, TrainingTechnique


@dataclass(frozen=True, kw_only=True)
class Options:
    """Hold the options of activation_offload.

    Attributes:
        share: The part of the blocks whose activations move, above 0 and at most 1. The first blocks are taken, since
            backward needs theirs last.
    """

    share: float = 1.0


def check(parts: Parts, machine: Machine, options: Options) -> Applicability:
    if not 0 < options.share <= 1:
        return NotApplicable(f"share must be above 0 and at most 1, not {options.share:g}")
    if parts.device_type != "cuda":
        return NotApplicable("the model is on the CPU: there is no other memory that activations could move to")
    chosen = chosen_blocks(parts.model, options.share)
    if not chosen:
        return NotApplicable("the model has no repeated blocks")
    return Applies(f"the activations of {len(chosen)} blocks move to the host's memory")


def chosen_blocks(model: nn.Module, share: float) -> list[nn.Module]:
    """Return the first blocks of a model, a part of all."""
    blocks = repeated_blocks(model)
    return blocks[: math.ceil(share * len(blocks))]


def apply(parts: Parts, options: Options) -> Parts:
    for block in chosen_blocks(parts.model, options.share):
        extend(block, Offloaded)
    return parts


TECHNIQUE = TrainingTechnique(
    name="activation_offload",
    stage=TrainingStage.MEMORY,
    order=30,
    card=__doc__,
    options=Options,
    exactness=Exactness.EXACT,
    check=check,
    apply=apply,
    keeps_dropout=True,
    space={"share": (1.0, 0.5, 0.25)},
    groups=frozenset({ACTIVATIONS}),
    predict_memory=lambda memory, options: memory.left(other=0.2),  # activations of blocks lie in the host's memory
)
