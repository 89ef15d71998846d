"""Prove that the first update is given the gradients that backward computed, averaged and clipped.

Backward can be right, and the update still see other gradients: scaled back wrongly, zeroed, clipped to another norm.
AdamW's updates hide a wrong scale, so the gradients themselves are compared.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from whet.core.workload import TrainingWorkload
from whet.core.workload.training import Trainer
from whet.parallel.pieces import whole_of
from whet.techniques.proof.gradients import GradientProof, drops_something, judged, sample
from whet.techniques.training_technique import Exactness


@contextlib.contextmanager
def first_gradients(trainer: Trainer) -> Iterator[dict[str, Tensor]]:
    """Yield what fills with a sample of each gradient that the first update of this block is given, by name.

    It stays empty for a model with dropout, whose gradients in training are others than without.
    """
    names = {id(p): name for name, p in trainer.model.named_parameters()}
    seen: dict[str, Tensor] = {}

    def note(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for p in (p for group in optimizer.param_groups for p in group["params"]):
            name = names.get(id(p))
            if name is not None and name not in seen and p.grad is not None:
                seen[name] = sample(whole_of(p.grad))

    if drops_something(trainer.model):
        yield seen
        return
    hook = trainer.optimizer.register_step_pre_hook(note)
    try:
        yield seen
    finally:
        hook.remove()


def judged_first(
    seen: Mapping[str, Tensor],
    found: Mapping[str, Tensor],
    workload: TrainingWorkload,
    original: Mapping[str, Tensor],
    reference: Mapping[str, Tensor],
    exactness: Exactness,
    moved: Mapping[str, Tensor],
) -> GradientProof | None:
    """Judge the gradients that the first update of a changed loop was given.

    Args:
        seen: What `first_gradients` yielded.
        found: The gradients that backward of the changed loop computes, batch by batch. Their norm says how much is
            clipped.
        workload: The original's description: how many batches it accumulates, and how it clips.
        original: The original's gradients, batch by batch.
        reference: Those in float64.
        moved: How far the original's own gradients move under rounding.

    Returns:
        The proof; None where the gradients of one update are not known: with dropout, with more batches than were
        looked at, or with several batches that are clipped together.
    """
    number = workload.num_accumulated
    num_known = len({name.partition(".")[0] for name in reference if not name.startswith("norm.")})
    if not seen or number > num_known or (number > 1 and workload.clip_norm is not None):
        return None
    updated = {id(p) for group in workload.optimizer(workload.model.parameters()).param_groups for p in group["params"]}
    names = [name for name, p in workload.model.named_parameters() if id(p) in updated]
    factor = _clipping(found, workload.clip_norm)
    expected = [_averaged(side, number, names, factor) for side in (original, reference)]
    return judged(_with_norms(seen), expected[0], expected[1], exactness, moved)


def _clipping(found: Mapping[str, Tensor], clip_norm: float | None) -> float:
    """Return the factor by which clip_grad_norm_ shortens the gradients of the first batch."""
    if clip_norm is None:
        return 1.0
    norms = torch.cat([value for name, value in found.items() if name.startswith("norm.0.")])
    return min(1.0, clip_norm / (float(norms.norm()) + 1e-6))


def _averaged(side: Mapping[str, Tensor], number: int, names: Iterable[str], factor: float) -> dict[str, Tensor]:
    """Return the mean of the first batches' gradients, of the parameters that are updated."""
    found: dict[str, Tensor] = {}
    for name in names:
        parts = [side[f"{i}.{name}"] for i in range(number) if f"{i}.{name}" in side]
        if parts:
            found[name] = factor * torch.stack(parts).sum(0) / number
    return _with_norms(found)


def _with_norms(samples: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return samples as `judged` takes them: as those of one batch, with their norms."""
    found = {f"0.{name}": sample for name, sample in samples.items()}
    return {**found, **{f"norm.{name}": sample.norm().reshape(1) for name, sample in found.items()}}
