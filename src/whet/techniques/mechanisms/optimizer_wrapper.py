"""Have an optimiser update other tensors than those that the model computes with: in another dtype, or elsewhere.

For the time of an update a parameter's data and gradient are other tensors, so that the optimiser makes and keeps its
state for these. It needs no change, as long as it updates each parameter by itself.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from whet.techniques.mechanisms.cpu_offloaded_gradients import numbers_of
from whet.techniques.mechanisms.optimizers import replace_step

_CHUNK_BYTES = 64 * 2**20  # of gradients that are exchanged at a time


class ExchangedUpdates(ABC):
    """Replace parameters' data while an optimiser updates them or loads its state."""

    def __init__(self, optimizer: Optimizer) -> None:
        """Take the places of the optimiser's step and of its load_state_dict."""
        self._optimizer = optimizer
        self._update, self._load = optimizer.step, optimizer.load_state_dict
        replace_step(optimizer, self._step)
        optimizer.load_state_dict = self._load_state_dict  # type: ignore[method-assign]
        optimizer.register_state_dict_post_hook(self._add_own_state)

    @abstractmethod
    def is_exchanged(self, p: nn.Parameter) -> bool:
        """Return whether a parameter is updated in another tensor."""

    @abstractmethod
    def lent(self, p: nn.Parameter) -> Tensor:
        """Return the tensor that takes the place of a parameter's data, with its value."""

    @abstractmethod
    def write_back(self, p: nn.Parameter, updated: Tensor) -> None:
        """Write the updated value to the parameter, which has its own data again."""

    def own_state(self) -> dict[str, Any]:
        """Return what an update needs besides the optimiser's state. It is saved with the optimiser's state_dict."""
        return {}

    def load_own_state(self, saved: Mapping[str, Any]) -> None:  # noqa: B027 - most have none
        """Take over what `own_state` returned, if an optimiser's whole state_dict holds it."""

    def _add_own_state(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        state_dict.update(self.own_state())

    def _step(self) -> None:
        """Update all parameters, some at a time, so that few gradients are in memory twice."""
        optimizer = self._optimizer
        groups = optimizer.param_groups
        try:
            for group in groups:
                for chunk in _chunks(group["params"]):
                    optimizer.param_groups = [{**group, "params": chunk}]
                    with self._exchanged([p for p in chunk if p.grad is not None]):
                        self._update()
        finally:
            optimizer.param_groups = groups

    def _load_state_dict(self, state_dict: Any) -> None:
        """Load the optimiser's state, which is cast and moved to the parameters' dtype and device."""
        with self._exchanged([p for group in self._optimizer.param_groups for p in group["params"]]):
            self._load(state_dict)
        self.load_own_state(state_dict)  # after the parameters were written back, which may draw random numbers

    @contextlib.contextmanager
    def _exchanged(self, parameters: Sequence[nn.Parameter]) -> Iterator[None]:
        """Replace data and gradients in the block, and write what came of it back."""
        kept = []
        for p in parameters:
            if self.is_exchanged(p):
                data, gradient, lent = p.data, p.grad, self.lent(p)
                like = None if gradient is None else numbers_of(gradient).to(lent.device, lent.dtype)
                _exchange(p, lent, like)
                kept.append((p, data, gradient))
        try:
            yield
        finally:
            for p, data, gradient in kept:
                updated = p.data
                _exchange(p, data, gradient)
                with torch.no_grad():
                    self.write_back(p, updated)


def _exchange(p: nn.Parameter, data: Tensor, gradient: Tensor | None) -> None:
    """Give a parameter other data and another gradient, of one dtype and on one device."""
    p.grad = None
    p.data = data
    p.grad = gradient


def _chunks(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Yield parameters in their order, so many at a time that their gradients take about 64 MB in float32."""
    chunk: list[nn.Parameter] = []
    size = 0
    for p in parameters:
        if chunk and size + 4 * p.numel() > _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(p)
        size += 4 * p.numel()
    if chunk:
        yield chunk
