"""Split a batch into parts by samples, the first dimension of its tensors, and join batches into a larger one."""

import copy
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from whet.errors import RecipeError, TargetError, type_name

OMIT = "leave accumulation out of the recipe"


def num_samples_of(batch: Any) -> int:
    """Return the first dimension of the first tensor in a batch; 1 where there is none."""
    if isinstance(batch, Tensor):
        return int(batch.shape[0]) if batch.dim() else 1
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple | list) else ()
    return next((num_samples_of(part) for part in parts if isinstance(part, Tensor | Mapping | tuple | list)), 1)


def parts_of(batch: Any, number: int) -> list[Any]:
    """Return a batch in parts of nearly as many samples, which share its memory.

    Args:
        batch: A tensor, or tuples, lists and dicts of tensors whose first dimension is that of the samples.
        number: The number of parts. There are fewer where the batch has fewer samples.

    Raises:
        RecipeError: Something in the batch has no first dimension of samples.
    """
    size = num_samples_of(batch)
    number = min(number, size)
    ends = [i * size // number for i in range(number + 1)]
    return [_sliced(batch, size, slice(a, b)) for a, b in pairwise(ends)]


def rows_of_batch(batch: Any, rows: slice) -> Any:
    """Return some samples of a batch, as a batch that shares its memory.

    Raises:
        RecipeError: Something in the batch has no first dimension of samples.
    """
    return _sliced(batch, num_samples_of(batch), rows)


def joined(batches: Sequence[Any]) -> Any:
    """Return batches as one, with the samples of all of them in their order.

    Args:
        batches: Batches of one structure: tensors, or tuples, lists and dicts of tensors whose first dimension is that
            of the samples.

    Raises:
        TargetError: They cannot be joined.
    """
    first = batches[0]
    if isinstance(first, Tensor) and first.dim():
        if any(not isinstance(one, Tensor) or one.shape[1:] != first.shape[1:] for one in batches):
            shapes = ", ".join(str(tuple(one.shape)) for one in batches if isinstance(one, Tensor))
            raise TargetError(f"batches with tensors of shapes {shapes} cannot be joined into a larger batch")
        return torch.cat(list(batches))
    if isinstance(first, Mapping):
        made: Any = copy.copy(first)
        for key in first:
            made[key] = joined([batch[key] for batch in batches])
        return made
    if isinstance(first, tuple | list):
        parts = [joined(ones) for ones in zip(*batches, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    if all(type(one) is type(first) and bool(one == first) for one in batches):
        return first
    raise TargetError(f"a batch holds {type_name(first)} beside its tensors, so that batches cannot be joined")


def _sliced(value: Any, size: int, rows: slice) -> Any:
    if isinstance(value, Tensor) and value.dim() and len(value) == size:
        return value[rows]
    if isinstance(value, Mapping):
        made: Any = copy.copy(value)
        for key, one in value.items():
            made[key] = _sliced(one, size, rows)
        return made
    if isinstance(value, tuple | list):
        parts = [_sliced(one, size, rows) for one in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if value is None or isinstance(value, bool | int | float) or (isinstance(value, Tensor) and not value.dim()):
        return value
    told = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
    raise RecipeError(f"a batch of {size} samples holds {told}, which cannot be split by samples; {OMIT}")
