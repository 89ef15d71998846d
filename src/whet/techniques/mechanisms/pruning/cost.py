"""Count what a model computes and holds, before and after it is pruned."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from whet.profiling.model.work import FORMULAS
from whet.techniques.mechanisms.evaluating import evaluating


@dataclass(frozen=True)
class ModelCost:
    """Hold the size of a model.

    Attributes:
        flops: Operations of one call, as PyTorch's FlopCounterMode counts them: 2mnk for a matrix product.
        num_parameters: The model's parameters; tied ones count once.
    """

    flops: int
    num_parameters: int


def cost_of(model: nn.Module, call: Callable[[nn.Module], Any]) -> ModelCost:
    """Return what one call of a model costs, without gradients and in evaluation mode, which ends with the call."""
    with evaluating(model), torch.no_grad(), FlopCounterMode(display=False, custom_mapping=FORMULAS) as counter:
        call(model)
    return ModelCost(counter.get_total_flops(), sum(p.numel() for p in model.parameters()))


def largest_within(
    model: nn.Module,
    call: Callable[[nn.Module], Any],
    keep: float,
    cut: Callable[[float], nn.Module | None],
    finest: float,
) -> nn.Module | None:
    """Return the model with the least amount cut, of those that compute no more than a share of the operations.

    Args:
        keep: The share of the operations that may stay, above 0 and below 1.
        cut: Returns the model without an amount from 0 to 1; None where none is left. More cut means fewer operations.
        finest: How finely the amount is looked for.

    Returns:
        The model, or None where none computes so little.
    """
    allowed = keep * cost_of(model, call).flops
    best: nn.Module | None = None
    low, high = 0.0, 1.0
    while high - low > finest:
        amount = (low + high) / 2
        small = cut(amount)
        if small is not None and cost_of(small, call).flops <= allowed:
            best, high = small, amount
        else:
            low = amount
    return best
