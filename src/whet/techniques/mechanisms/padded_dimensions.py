"""Compute linear layers and convolutions with the sizes that tensor cores take whole: they are padded inside forward.

Weight, bias and input get zeros at their ends, and the result is cut to its own size. The parameters keep their shapes
and names. The padding gets no gradient: what is cut off has none, and what is padded drops it. Inside autocast, tensors
are cast before they are padded, so that fewer bytes are copied.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from whet.techniques.mechanisms.module_class import AddedForward, extend, first_class

MULTIPLE = 8  # of channels, and of the inputs of linear layers
OUTPUTS = 64  # the multiple of the outputs of linear layers, such as a vocabulary
LEAST_WEIGHTS = 2**16  # of a linear layer: around a smaller product, calls take the time
LEAST_FILTERS = 2**12  # weights of a convolution, which uses each of them at every position


class AlignedLinear(AddedForward):
    """Multiply with padded sizes while the model trains."""

    def forward(self: Any, x: Tensor) -> Tensor:
        """Return x W^T + b. The rows of the result may lie apart from each other in memory."""
        if not (self.training and torch.is_grad_enabled()):
            return super().forward(x)  # type: ignore[misc,no-any-return]
        x, weight, bias = _cast(x), _cast(self.weight), _cast(self.bias)
        more_out, more_in = _padding(self)
        padded = _padded(weight, (0, more_in, 0, more_out))
        out = F.linear(_padded(x, (0, more_in)), padded, _padded(bias, (0, more_out)))
        return out.narrow(-1, 0, len(weight)) if more_out else out


class AlignedConv(AddedForward):
    """Compute a convolution with padded channels while the model trains."""

    def forward(self: Any, x: Tensor) -> Tensor:
        """Return the convolution of x, with or without a dimension of samples."""
        if not (self.training and torch.is_grad_enabled()):
            return super().forward(x)  # type: ignore[misc,no-any-return]
        x, weight, bias = _cast(x), _cast(self.weight), _cast(self.bias)
        more_out, more_in = _padding(self)
        inside = (0, 0) * (weight.dim() - 2)  # the positions of a filter stay
        padded = _padded(weight, (*inside, 0, more_in, 0, more_out))
        out: Tensor = self._conv_forward(_padded(x, (*inside, 0, more_in)), padded, _padded(bias, (0, more_out)))
        return out.narrow(1 - weight.dim(), 0, len(weight)) if more_out else out


def align(layer: nn.Module) -> None:
    """Have a linear layer or a convolution compute with padded sizes. It stays the object that it is."""
    extend(layer, AlignedLinear if isinstance(layer, nn.Linear) else AlignedConv)


def unaligned_layers(model: nn.Module, most_growth: float) -> tuple[list[nn.Module], int]:
    """Find the layers that padding could make faster, where it multiplies their weights by `most_growth` at most.

    Returns:
        The layers that are large enough, and how many more there would be if nothing else computed them: whoever
        changed their forward uses the weights by itself.
    """
    found: list[nn.Module] = []
    num_taken = 0
    for module, kind in _candidates(model):
        if not _pays(module, most_growth):
            continue
        if type(module).forward is kind.forward:
            found.append(module)
        else:
            num_taken += 1
    return found, num_taken


def _candidates(model: nn.Module) -> Iterator[tuple[Any, Any]]:
    """Yield layers whose first forward is PyTorch's own and whose weights are plain parameters, with PyTorch's class.

    The last layer of nn.MultiheadAttention is left out, since its forward is never called.
    """
    for module in model.modules():
        kind = next((k for k in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d) if isinstance(module, k)), None)
        if kind is None or isinstance(module, NonDynamicallyQuantizableLinear):
            continue
        names = ("forward",) if kind is nn.Linear else ("forward", "_conv_forward")
        is_own = all(getattr(first_class(module), name) is getattr(kind, name) for name in names)
        if is_own and type(module.weight) is nn.Parameter and getattr(module, "groups", 1) == 1:
            yield module, kind


def _pays(layer: Any, most_growth: float) -> bool:
    """Return whether a layer is large enough, and padding adds something, but not too much."""
    outputs, inputs = layer.weight.shape[:2]
    least = LEAST_WEIGHTS if isinstance(layer, nn.Linear) else LEAST_FILTERS
    more_out, more_in = _padding(layer)
    growth = (1 + more_out / outputs) * (1 + more_in / inputs)
    return bool(layer.weight.numel() >= least and 1 < growth <= most_growth)


def _padding(layer: Any) -> tuple[int, int]:
    """Return how many outputs and inputs a layer lacks to the next multiple."""
    outputs, inputs = layer.weight.shape[:2]
    return -outputs % (OUTPUTS if isinstance(layer, nn.Linear) else MULTIPLE), -inputs % MULTIPLE


def _cast(x: Any) -> Any:
    """Return a tensor in the dtype that autocast would cast it to. None stays None."""
    if x is None or not torch.is_autocast_enabled(x.device.type):
        return x
    is_cast = x.is_floating_point() and x.dtype is not torch.float64
    return x.to(torch.get_autocast_dtype(x.device.type)) if is_cast else x


def _padded(x: Any, widths: tuple[int, ...]) -> Any:
    """Return a tensor with zeros at its ends; the tensor itself where there are none to add."""
    return F.pad(x, widths) if x is not None and any(widths) else x
