"""Give a workload another batch size or sequence length: its first batch is cut or repeated."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from whet.core.signature import map_tensors, tensors_of
from whet.core.workload import Workload
from whet.errors import OptionError

_NAMES = ("batch", "seq")


def checked_sizes(sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes, or raise OptionError where one is not positive or has another name than batch and seq."""
    for name, size in sizes.items():
        if name not in _NAMES:
            raise OptionError(f"there is no size {name!r}; there are: {', '.join(_NAMES)}")
        if size < 1:
            raise OptionError(f"{name} must be 1 or more, not {size}")
    return dict(sizes)


def resized(workload: Workload, *, batch: int | None = None, seq: int | None = None) -> Workload:
    """Return the workload with one batch of `batch` samples, each `seq` tokens long; None leaves a size as it is.

    Samples are the first dimension of every tensor that has as many entries there as the batch has samples. Tokens are
    the second dimension of integer or boolean tensors [batch, tokens]: token ids, masks, labels.

    Raises:
        OptionError: There is no such dimension.
    """
    first = workload.inputs[0]
    if seq is not None:
        first = map_tensors(first, lambda x: _indexed(x, 1, seq) if _has_tokens(x, workload.num_samples) else x)
        if not any(_has_tokens(x, workload.num_samples) for x in tensors_of(first)):
            raise OptionError(
                f"seq does not apply to {workload.name}: none of its inputs is [batch, tokens] of integers; "
                "give your function a parameter `seq`, or leave seq out"
            )
    if batch is not None:
        if not any(_has_samples(x, workload.num_samples) for x in tensors_of(first)):
            raise OptionError(
                f"batch does not apply to {workload.name}: none of its inputs has {workload.num_samples} samples along "
                "its first dimension; give your function a parameter `batch`, or leave batch out"
            )
        first = map_tensors(first, lambda x: _indexed(x, 0, batch) if _has_samples(x, workload.num_samples) else x)
    if batch is None and seq is None:
        return workload
    num_samples = workload.num_samples if batch is None else batch
    return replace(workload, inputs=[first], calibration=(), num_samples=num_samples)


def _has_samples(value: Tensor, num_samples: int) -> bool:
    return value.dim() > 0 and value.shape[0] == num_samples


def _has_tokens(value: Tensor, num_samples: int) -> bool:
    """Return whether a tensor is [batch, tokens] of integers or booleans."""
    return _has_samples(value, num_samples) and value.dim() == 2 and not value.is_floating_point()


def _indexed(x: Tensor, dim: int, size: int) -> Tensor:
    """Return the first `size` entries along a dimension, repeated from the start where there are fewer."""
    return x.index_select(dim, torch.arange(size, device=x.device) % x.shape[dim])
