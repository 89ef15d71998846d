"""Check that a training is finite, reproducible from its seed, and fits into memory; if not, name the part to blame."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from whet.core.workload.training import Trainer
from whet.errors import ModelError, TargetError, memory_shortage
from whet.measure.isolate import Failure
from whet.techniques.proof.divergence import divergence
from whet.techniques.proof.not_finite import batches_fault
from whet.tuner.training.opening import NUM_DIGESTS, digests, first_batches, open_training

FIRST_STEPS = 3
_STAGE = "stage.txt"
_SAME_LOSS = 1e-3  # relative: two runs of one seed differ by rounding at most
_SAME_SUM = 1e-6  # of the sum of a parameter's sizes

# What is done when memory runs out: the part, and what helps.
BUILDING = "the weights and the batches, while the target's function makes them|make the model or the batches smaller"
READING = "the batches, while the first ones are read|make them smaller"
COMPUTING = "the step: forward and backward of the first batches|make the batches smaller"
COMPARING = (
    "the step in float64, which whet holds every variant's gradients against, and which takes twice as much as your "
    "own|make the batches smaller for tuning"
)
STEPPING = "the step: the first updates, with the optimiser's state|make the batches smaller, or take another optimiser"


def note_stage(directory: Path, stage: str) -> None:
    """Note what the process does next, so that its parent can say where memory ran out."""
    (directory / _STAGE).write_text(stage, encoding="utf-8")


def out_of_memory(directory: Path, failure: Failure) -> ModelError:
    """Return the error that says which part of a training does not fit into memory."""
    try:
        part, _, help_ = (directory / _STAGE).read_text(encoding="utf-8").partition("|")
    except OSError:
        part, _, help_ = BUILDING.partition("|")
    return ModelError(
        f"the training does not fit into memory: too large is {part} ({memory_shortage(failure.message)}); {help_}"
    )


def diverged(what: str, fault: str, help_: str) -> ModelError:
    """Return the error for an original that diverges. It says whether weights, batches or the step are to blame.

    Args:
        fault: What is wrong with the weights or the batches; "" where they are finite.
        help_: What may help where the step is to blame.
    """
    if fault:
        return ModelError(f"{what}: {fault}. Nothing can be compared with that")
    return ModelError(
        f"{what}: the step itself diverges, since weights and batches are finite. Nothing can be compared with that; "
        f"{help_}"
    )


def first_losses(trainer: Trainer, batches: Sequence[Any]) -> tuple[float, ...]:
    """Make the first steps, and return their losses.

    Raises:
        ModelError: A loss is no number.
    """
    losses = tuple(float(trainer.step()) for _ in range(FIRST_STEPS))
    if why := divergence(losses):
        raise diverged(why, batches_fault(batches), "a smaller learning rate or clipped gradients may help")
    return losses


def sums_of(model: nn.Module) -> dict[str, tuple[float, float]]:
    """Return the sum of each parameter and the sum of its sizes, in float64, to tell two builds apart."""
    return {
        name: (float(p.detach().double().sum()), float(p.detach().double().abs().sum()))
        for name, p in model.named_parameters()
    }


def check_reproducible(
    target: str, sums: dict[str, tuple[float, float]], batches: Sequence[str], losses: Sequence[float]
) -> None:
    """Build the training again, and compare its weights, its batches and its first losses.

    Args:
        sums: What `sums_of` returned for the first build.
        batches: The digests of its first batches.

    Raises:
        TargetError: The second run differs; the message says in which part.
    """
    what = "the training is not reproducible from its seed"
    workload = open_training(target)
    again = sums_of(workload.model)
    for name, (total, size) in sums.items():
        if name not in again or abs(again[name][0] - total) > _SAME_SUM * max(size, again[name][1]):
            raise TargetError(
                f"{what}: the weights differ in a second build, first in {name}. Draw them from a seeded generator: "
                "call torch.manual_seed before the model is made"
            )
    data = first_batches(workload, NUM_DIGESTS)
    found = digests(data)
    if found != tuple(batches):
        number = next((i for i, (a, b) in enumerate(zip(batches, found, strict=False), 1) if a != b), len(found) + 1)
        raise TargetError(
            f"{what}: the weights are the same in a second build, but the batches differ, first batch {number}. Draw "
            "data and their order from torch's, NumPy's or Python's generators, which whet seeds, or seed your own"
        )
    for number, (first, second) in enumerate(zip(losses, first_losses(Trainer(workload), data), strict=True), 1):
        if abs(first - second) > _SAME_LOSS * max(abs(first), 1e-12):
            raise TargetError(
                f"{what}: weights and batches are the same in a second run, but the step differs: step {number} had a "
                f"loss of {first:.6g}, and of {second:.6g} the second time. Look for unseeded numbers in the loss, the "
                "optimiser and the schedule"
            )
