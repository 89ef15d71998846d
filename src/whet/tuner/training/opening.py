"""Open a training run in a child process, and know its first batches again."""

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from whet.core.workload import TrainingWorkload
from whet.core.workload.larger_batch import with_larger_batch
from whet.core.workload.training import seed_everything
from whet.errors import TargetError
from whet.workloads.target import open_any

NUM_DIGESTS = 6


def open_training(target: str, *, seed: int | None = None, batch_factor: int = 1, option: str = "") -> TrainingWorkload:
    """Return the training workload with a target's name or address.

    Args:
        seed: The seed in place of the workload's own. It changes the order of the data and what is drawn in training;
            the weights that the model begins with are drawn before, by the target's own function.
        batch_factor: How many of its batches become one.
        option: What was given that goes with a training alone.

    Raises:
        TargetError: It is of another kind.
    """
    seed_everything(0 if seed is None else seed)
    workload = open_any(target)
    if not isinstance(workload, TrainingWorkload):
        if option:
            raise TargetError(f"{option} goes with a training, and {target} is a {type(workload).__name__}")
        raise TargetError(f"{target} is a {type(workload).__name__}; here whet takes a TrainingWorkload")
    workload = workload if seed is None else replace(workload, seed=seed)
    return workload if batch_factor == 1 else with_larger_batch(workload, batch_factor)


def first_batches(workload: TrainingWorkload, number: int, *, later: int = 0) -> list[Any]:
    """Return the first batches of a pass, as a run from the seed sees them.

    Args:
        later: What is added to the seed. A loop that shuffles anew for each pass then gives another order.

    Raises:
        TargetError: There are none.
    """
    seed_everything(workload.seed + later)
    batches = list(islice(workload.batches, number))
    if not batches:
        raise TargetError("batches gives no batch")
    return batches


def digests(batches: Iterable[Any]) -> tuple[str, ...]:
    """Return a digest of each batch: of all its tensors and plain values."""
    return tuple(_digest(batch) for batch in batches)


def _digest(batch: Any) -> str:
    found = hashlib.sha256()
    for leaf in tree_leaves(batch):
        if isinstance(leaf, Tensor):
            found.update(f"{leaf.dtype}{tuple(leaf.shape)}".encode())
            found.update(leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            found.update(repr(leaf).encode())
    return found.hexdigest()[:16]
