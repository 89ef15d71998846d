"""Say where a training stops being one: at which step its loss diverges, and what is not finite before it."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

FAR = 10.0  # times the original's largest loss: a run that comes there diverges


def divergence(losses: Sequence[float], most: float = math.inf) -> str:
    """Return at which step a training diverges, in words; "" where it does not.

    Args:
        losses: The loss of each step, from the first one on.
        most: The size of a loss that no sound run reaches: `FAR` times the original's largest.
    """
    for number, loss in enumerate(losses, 1):
        if not math.isfinite(loss):
            return f"the loss of step {number} is {loss}"
        if abs(loss) > most:
            return f"the loss of step {number} is {loss:.4g}, more than {FAR:g} times the original's largest"
    return ""


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
