"""Set a part of the numbers that a model adds to its stream to zero while it trains (Srivastava et al., 2014)."""

from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from whet.errors import OptionError
from whet.trainer.model import TrainedModel


def add_dropout(model: TrainedModel, share: float) -> None:
    """Add dropout behind the embedding and the parts of the blocks of a model of models/, in place.

    Evaluation and the model that is written have none.

    Args:
        model: The model.
        share: The share of numbers that become zero.

    Raises:
        OptionError: The model is one of transformers, which has a dropout of its own.
    """
    if not share:
        return
    if not model.dropped:
        raise OptionError(
            "optimizer.dropout is for models of whet's own; set the dropout of this one in its config.json, and leave "
            "optimizer.dropout out"
        )
    for module in model.module.modules():
        if isinstance(module, nn.Embedding) or type(module).__name__ in model.dropped:
            module.register_forward_hook(partial(_drop, share))


def _drop(share: float, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return F.dropout(output, share, module.training)
