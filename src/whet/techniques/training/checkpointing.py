"""Compute the activations of some blocks again in backward, and do not keep them.

What            Each k-th repeated block keeps only its input. Backward runs the block's forward once more. With
                keep="products" the results of matrix products, convolutions and attention are kept too, and only the
                cheap operators between them run again. Under --max-memory, whet tune begins with the choice that
                recomputes least, of those that fit by what the blocks were seen to save.
When it helps   Activations take most of the memory: long sequences, large batches, many layers.
When it hurts   Always in time: a third more arithmetic where every block is computed again; much less with
                keep="products", which saves less memory.
Numerics        Bit-equal gradients; dropout draws the same numbers, as the generator's state is restored.
Composes        With everything. torch.compile sees through it.
Source          Chen et al., 2016, arXiv:1604.06174; Korthikanti et al., 2022, arXiv:2205.05198 (selective);
                torch.utils.checkpoint with use_reentrant=False and create_selective_checkpoint_contexts.
"""

from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from whet.core.workload.blocks import repeated_blocks
from whet.measure.machine import Machine
from whet.techniques.costs.memory import StepMemory
from whet.techniques.costs.step_profile import kind_of
from whet.techniques.mechanisms.blocks import ACTIVATIONS
from whet.techniques.mechanisms.module_class import AddedForward, extend
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.technique import Applicability, Applies, NotApplicable, OptionSpace
from whet.techniques.training_technique import Exactness, TrainingStage, TrainingTechnique

_SPACE: OptionSpace = {"every": (1, 2, 3, 4, 6, 8), "keep": ("inputs", "products")}
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Hold the options of checkpointing.

    Attributes:
        every: Every so many-th block is computed again: 1 for all of them.
        keep: What such a block keeps: "inputs" alone, or the results of its "products" too.
    """

    every: int = 1
    keep: str = "inputs"


class _Checkpointed(AddedForward):
    """Keep only the inputs of forward while gradients are computed."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        forward = super().forward  # type: ignore[misc]
        if not (self.training and torch.is_grad_enabled()):  # type: ignore[attr-defined]
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)


class _KeepsProducts(AddedForward):
    """Keep the inputs of forward and the results of its products while gradients are computed."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        forward = super().forward  # type: ignore[misc]
        if not (self.training and torch.is_grad_enabled()):  # type: ignore[attr-defined]
            return forward(*args, **kwargs)
        contexts = partial(create_selective_checkpoint_contexts, _policy)
        return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)


def _policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if _is_product(operator.name()) else CheckpointPolicy.PREFER_RECOMPUTE


@cache
def _is_product(operator: str) -> bool:
    return kind_of(operator) in ("products_s", "attention_s")


def check(parts: Parts, machine: Machine, options: Options) -> Applicability:
    if options.every < 1:
        return NotApplicable(f"every must be 1 or more, not {options.every}")
    if options.keep not in _SPACE["keep"]:
        return NotApplicable(f"keep must be inputs or products, not {options.keep!r}")
    blocks = repeated_blocks(parts.model)
    if len(blocks) < 2:
        return NotApplicable("the model has no repeated blocks")
    if options.every > len(blocks):
        return NotApplicable(f"the model has only {len(blocks)} blocks")
    chosen = blocks[:: options.every]
    if any(isinstance(part, _NORMS) and part.track_running_stats for block in chosen for part in block.modules()):
        return NotApplicable("blocks with batch norms would count their statistics twice")
    return Applies(f"{len(chosen)} of {len(blocks)} blocks are computed again in backward")


def predict_memory(memory: StepMemory, options: Options) -> float:
    """Return the bytes of a step: of the chosen blocks only the inputs are kept, or the results of products too.

    While backward computes a block again, the block is there as a whole, and what later blocks kept is not there any
    more. Where nothing was measured, the shares are rules of thumb.
    """
    saved = memory.saved
    if saved is None or not saved.blocks:
        return memory.left(other=1 - (0.9 if options.keep == "inputs" else 0.6) / options.every)
    kept = list(saved.blocks)
    for number in range(0, len(kept), options.every):
        kept[number] = min(kept[number], saved.products[number] if options.keep == "products" else 0)
    freed = [own - rest for own, rest in zip(saved.blocks, kept, strict=True)]
    again = max(one - sum(kept[number + 1 :]) for number, one in enumerate(freed))
    return max(memory.peak_bytes - sum(freed) + max(0, again), memory.left(other=0.0))


def apply(parts: Parts, options: Options) -> Parts:
    for block in repeated_blocks(parts.model)[:: options.every]:
        extend(block, _KeepsProducts if options.keep == "products" else _Checkpointed)
    return parts


TECHNIQUE = TrainingTechnique(
    name="checkpointing",
    stage=TrainingStage.MEMORY,
    order=10,
    card=__doc__,
    options=Options,
    exactness=Exactness.EXACT,
    check=check,
    apply=apply,
    keeps_dropout=True,
    space=_SPACE,
    groups=frozenset({ACTIVATIONS}),
    predict_memory=predict_memory,
)
