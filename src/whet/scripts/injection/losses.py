"""Record the loss of every backward pass, and add up those of one optimiser step."""

import contextlib
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from whet.profiling.step.patching import Patches


class BackwardLosses:
    """Add up the losses that backward is called on, until `take`, so that accumulated micro-batches count as one."""

    def __init__(self) -> None:
        self._sum: Tensor | None = None
        self._is_paused = False
        self._scales: WeakKeyDictionary[Tensor, float] = WeakKeyDictionary()

    def take(self) -> Tensor | None:
        """Return the sum since the last call, as a tensor of one element on its device; None without a loss."""
        found, self._sum = self._sum, None
        return found

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def listen(self, patches: Patches) -> None:
        """Record the loss of every backward pass, and the factor by which a gradient scaler multiplied it."""
        backward, scale = torch.autograd.backward, torch.amp.GradScaler.scale

        def heard(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            for tensor in [tensors] if isinstance(tensors, Tensor) else tensors:
                if tensor.numel() == 1 and not self._is_paused:
                    value = tensor.detach() / self._scales.get(tensor, 1.0)
                    self._sum = value if self._sum is None else self._sum + value
            return backward(tensors, *args, **kwargs)

        def scaled(scaler: torch.amp.GradScaler, outputs: Any) -> Any:
            result = scale(scaler, outputs)
            if isinstance(result, Tensor):
                self._scales[result] = scaler.get_scale()
            return result

        patches.set(torch.autograd, "backward", heard)
        patches.set(torch.amp.GradScaler, "scale", scaled)
