"""Count what a model computes and holds, before and after it is pruned."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from whet.profiler.work import FORMULAS


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
    """Return what one call of a model costs, in evaluation mode and without gradients.

    Args:
        model: The model. Its mode is what it was afterwards.
        call: Calls it.
    """
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=FORMULAS) as counter:
            call(model)
    finally:
        model.train(was_training)
    return ModelCost(counter.get_total_flops(), sum(p.numel() for p in model.parameters()))
