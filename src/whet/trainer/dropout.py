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
        share: The share of numbers that become zero.

    Raises:
        OptionError: The model is one of transformers, or of a family whose parts are not named.
    """
    if not share:
        return
    if not model.dropped:
        raise OptionError(
            "whet adds no dropout to models of this family; leave optimizer.dropout out (models of transformers have a "
            "dropout of their own in config.json)"
        )
    for module in model.module.modules():
        if isinstance(module, nn.Embedding) or type(module).__name__ in model.dropped:
            module.register_forward_hook(partial(_drop, share))


def _drop(share: float, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return F.dropout(output, share, module.training)
