"""Say what of a training is not finite before its first step: its weights or its batches."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves


def weights_fault(model: nn.Module) -> str:
    """Return which parameter holds NaN or infinity, in words; "" where none does."""
    for name, parameter in model.named_parameters():
        if not _is_finite(parameter):
            return f"the weights are not finite: {name} holds NaN or infinity before the first step"
    return ""


def batches_fault(batches: Iterable[Any]) -> str:
    """Return which batch holds NaN or infinity, in words; "" where none does.

    Ask it where a loss or a gradient is not finite: a batch may hold infinity for good reason, as a mask does.
    """
    for number, batch in enumerate(batches, 1):
        if not all(_is_finite(leaf) for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)):
            return f"the batches are not finite: batch {number} holds NaN or infinity"
    return ""


def _is_finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())
