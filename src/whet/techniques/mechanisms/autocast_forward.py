"""Run a model's forward inside autocast to bfloat16, and return float32, so that a loss outside is not rounded."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from whet.measure.device import device_type_of
from whet.techniques.mechanisms.module_class import AddedForward


class AutocastForward(AddedForward):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        parameters = self.parameters()  # type: ignore[attr-defined]  # of the module that this is added to
        with torch.autocast(device_type_of(parameters), torch.bfloat16):
            output = super().forward(*args, **kwargs)  # type: ignore[misc]
        return tree_map_only(Tensor, _in_float32, output)


def _in_float32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype is torch.bfloat16 else tensor
