"""Run a module in fewer bits behind its own interface: its inputs and outputs keep their dtypes."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class PrecisionWrapper(nn.Module):
    """Cast a module's inputs, call it, under autocast to bfloat16 if asked to, and cast its outputs back.

    Args:
        module: A module that takes flat tensors and returns a tuple of tensors.
        outputs: The original's outputs. The results have their dtypes.
        inputs: The type that floating-point inputs are cast to; None leaves them alone.
        autocast: The kind of device on which the module runs inside torch.autocast; "" for none.
    """

    def __init__(
        self, module: nn.Module, outputs: Sequence[Tensor], *, inputs: torch.dtype | None = None, autocast: str = ""
    ) -> None:
        super().__init__()
        self.module = module
        self.input_dtype = inputs
        self.autocast_device = autocast
        self.output_dtypes = tuple(y.dtype for y in outputs)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        if self.input_dtype is not None:
            tensors = tuple(x.to(self.input_dtype) if x.is_floating_point() else x for x in tensors)
        if self.autocast_device:
            with torch.autocast(self.autocast_device, torch.bfloat16):
                outputs = self.module(*tensors)
        else:
            outputs = self.module(*tensors)
        return tuple(y.to(dtype) for y, dtype in zip(outputs, self.output_dtypes, strict=True))
