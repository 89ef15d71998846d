"""Measure how far a model's gradients move when its parameters move by a rounding error.

A gradient can jump: where an input of a ReLU lies next to 0, the least rounding switches it on or off, and thousands of
gradients change with it. Two trainings that are the same then differ by percents, and the original's own error, which
is that of one run, does not tell. So the original is also run with its parameters moved: by 1e-5, as an algorithm that
sums in another order moves what follows, and by 2^-8, as bfloat16 rounds.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from whet.core.workload.training import Loss
from whet.techniques.proof import gradients

SUMS, BFLOAT16 = 1e-5, 2.0**-8  # relative
MOVES = {SUMS: ("error",), BFLOAT16: ("bend", "length")}  # how far parameters are moved, and what is measured then


def sensitivity(
    model: nn.Module,
    loss: Loss,
    batches: Sequence[Any],
    reference: dict[str, Tensor],
    *,
    seed: int,
    sizes: Iterable[float] = tuple(MOVES),
) -> dict[str, Tensor]:
    """Return how far each parameter's gradient moves; the worst batch counts.

    Args:
        model: The original, in training mode.
        batches: One gradient is taken for each.
        reference: The gradients of the same batches in float64.
        seed: The seed before each batch.
        sizes: How far parameters are moved: SUMS alone tells of exact techniques, BFLOAT16 of those that round.

    Returns:
        "error.NAME" -> the relative error [1] after the small move; "bend.NAME" -> 1 - cosine [1], and "length.NAME" ->
        the relative change of the norm [1], after the large one.
    """
    found: dict[str, Tensor] = {}
    for size in sizes:
        moved: dict[str, Tensor] = {}
        for number, batch in enumerate(batches):
            moved |= _moved_gradients(model, loss, batch, size, number, seed=seed)
        for name, value in distances_of(moved, reference, size).items():
            found[name] = torch.maximum(found.get(name, torch.zeros(1)), value)
    return found


def distances_of(moved: dict[str, Tensor], reference: dict[str, Tensor], size: float) -> dict[str, Tensor]:
    """Return how far gradients lie from a reference once parameters moved by SUMS or BFLOAT16; see `sensitivity`."""
    found: dict[str, Tensor] = {}
    for key in (key for key in reference if not key.startswith("norm.")):
        distances = gradients.distances(moved, reference, key)
        for kind in MOVES[size]:
            name = f"{kind}.{gradients.plain(key)}"
            found[name] = torch.maximum(found.get(name, torch.zeros(1)), torch.tensor([distances[kind]]))
    return found


@torch.no_grad()
def move(parameters: Iterable[Tensor], size: float, generator: torch.Generator) -> None:
    """Move each number by at most this part of it, up or down by chance."""
    for p in parameters:
        p.mul_(1 + size * (2 * torch.rand(p.shape, generator=generator) - 1).to(p.device, p.dtype))


def _moved_gradients(
    model: nn.Module, loss: Loss, batch: Any, size: float, number: int, *, seed: int
) -> dict[str, Tensor]:
    """Return the gradients of one batch with parameters moved by at most this part of them; they are put back.

    Each batch, by its number, has another move.
    """
    generator = torch.Generator().manual_seed(number)
    before = [p.detach().clone() for p in model.parameters()]
    try:
        move(model.parameters(), size, generator)
        found = gradients.gradients_of(model, loss, [batch], seed=seed)
    finally:
        with torch.no_grad():
            for p, value in zip(model.parameters(), before, strict=True):
                p.copy_(value)
    return {name.replace("0.", f"{number}.", 1): value for name, value in found.items()}
