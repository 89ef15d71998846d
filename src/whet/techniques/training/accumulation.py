"""Compute each batch in several parts, and sum their gradients: one optimiser step for the same batch.

What            The batch of a step is split by samples. Forward and backward run for one part after the other, so that
                the activations of one part are in memory at a time. The gradients are the whole batch's.
When it helps   Activations take most of the memory: they shrink by the number of parts.
When it hurts   Small parts use the processor less well. A CPU pays little, a GPU with small parts much.
Numerics        The gradient of the mean over the whole batch's valid targets (ignore_index is respected), not a mean of
                means; sums in another order: 1e-6 relative. Dropout draws other numbers for the same batch. Refused:
                batch norms, losses that whet cannot weigh, and those that compare samples of a batch.
Composes        With everything but optimizer_in_backward (group gradients).
Source          PyTorch documentation, "Gradient accumulation"; transformers issue 34198 (a mean of means).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from whet.core.recipe import Step
from whet.core.workload.batch_parts import num_samples_of
from whet.core.workload.micro_batches import split_batches
from whet.measure.machine import Machine
from whet.techniques.mechanisms.optimizers import GRADIENTS
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.mechanisms.uses import Use
from whet.techniques.technique import Applicability, Applies, NotApplicable
from whet.techniques.training_technique import Exactness, TrainingStage, TrainingTechnique

ACCUMULATION = "accumulation"
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Hold the options of accumulation.

    Attributes:
        num_parts: The number of parts of a batch.
    """

    num_parts: int = 2


def num_parts_of(steps: Sequence[Step]) -> int | float | str:
    """Return into how many parts a recipe divides each batch, as it says them; 1 where it does not."""
    own = next((step for step in steps if step.technique == ACCUMULATION), None)
    return 1 if own is None else own.options.get("num_parts", Options.num_parts)


def check(parts: Parts, machine: Machine, options: Options) -> Applicability:
    if options.num_parts < 2:
        return NotApplicable(f"{options.num_parts} parts; give 2 or more")
    if any(isinstance(m, _NORMS) for m in parts.model.modules()):
        return NotApplicable("batch norms compare the samples of a batch")
    size = _batch_size(parts.batches)
    if size is not None and size < options.num_parts:
        return NotApplicable(f"a batch has {size} samples, fewer than {options.num_parts} parts")
    return Applies(f"each batch in {options.num_parts} parts")


def _batch_size(batches: Any) -> int | None:
    """Return the samples of a batch, where the loader says so; None where only iterating would tell."""
    if isinstance(batches, list | tuple):
        return num_samples_of(batches[0]) if batches else None
    size = getattr(batches, "batch_size", None)
    return size if isinstance(size, int) else None


def apply(parts: Parts, options: Options) -> Parts:
    """Return the parts of a loop whose batches whet.micro_batches splits."""
    split_batches(parts.model, parts.optimizer, options.num_parts)
    return parts


TECHNIQUE = TrainingTechnique(
    name=ACCUMULATION,
    stage=TrainingStage.OPTIMIZER,
    order=80,  # the optimiser that steps is known
    card=__doc__,
    options=Options,
    exactness=Exactness.EXACT,
    check=check,
    apply=apply,
    space={"num_parts": (2, 4, 8)},
    groups=frozenset({GRADIENTS}),
    # Activations are those of one part.
    predict_memory=lambda memory, options: memory.left(other=1 / options.num_parts),
    refuses={
        Use.DDP: "each process sees its own targets alone, and would weigh the parts by them",
        Use.FSDP2: "each process sees its own targets alone, and would weigh the parts by them",
        Use.TRAINER: "it splits batches itself: divide per_device_train_batch_size by num_parts, and multiply "
        "gradient_accumulation_steps by it",
        Use.LIGHTNING: "it splits batches itself: multiply its accumulate_grad_batches",
    },
)
