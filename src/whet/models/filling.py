"""Give a model that was built on the meta device its weights a unit at a time, so that each can be divided at once."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor, nn


class Filling:
    """Make the weights of a model's parts. Between calls, it holds none of them."""

    def __init__(self, model: nn.Module, value_of: Callable[[str], Tensor]) -> None:
        """Prepare for a model on the meta device.

        Args:
            value_of: Makes the whole weight of a name on the CPU.
        """
        self._value_of = value_of
        self._parameters = dict(model.named_parameters())  # kept, so that identities stay theirs
        self._names = {id(p): name for name, p in self._parameters.items()}
        self._filled: set[int] = set()

    def __call__(self, unit: nn.Module) -> None:
        """Make the weights of a unit that are on the meta device, in place. A weight belongs to one unit.

        Raises:
            ValueError: Another unit shares one of them.
        """
        made: dict[int, nn.Parameter] = {}
        for module in unit.modules():
            for key, p in module._parameters.items():
                if p is None or not p.is_meta:
                    continue
                if id(p) in self._filled:
                    raise ValueError(f"{self._names[id(p)]} belongs to two units")
                if id(p) not in made:
                    made[id(p)] = nn.Parameter(self._value_of(self._names[id(p)]), requires_grad=p.requires_grad)
                setattr(module, key, made[id(p)])
        self._filled.update(made)


class Drawing:
    """Draw the weights of a new model in any order, each as if all were drawn in that of the model's parameters."""

    def __init__(
        self, model: nn.Module, draw: Callable[[Any, str, Tensor, Generator], None], config: Any, generator: Generator
    ) -> None:
        """Prepare for a model on the meta device.

        Args:
            draw: Fills one weight, given the config, its name, and itself.
            generator: What it draws from first; it is used up.
        """
        self._draw, self._config, self._generator = draw, config, generator
        self._kinds = {name: (p.shape, p.dtype) for name, p in model.named_parameters()}
        self._states: dict[str, Tensor] = {}  # of the generator before the weights that were passed

    def __call__(self, name: str) -> Tensor:
        """Return a weight. What comes before it, and was not asked for yet, is drawn and thrown away."""
        if name in self._states:
            generator = Generator()
            generator.set_state(self._states[name])
            return self._drawn(name, generator)
        for passed in [one for one in self._kinds if one not in self._states]:
            self._states[passed] = self._generator.get_state()
            weight = self._drawn(passed, self._generator)
            if passed == name:
                return weight
            del weight
        raise KeyError(name)

    def _drawn(self, name: str, generator: Generator) -> Tensor:
        shape, dtype = self._kinds[name]
        weight = torch.empty(shape, dtype=dtype)
        self._draw(self._config, name, weight, generator)
        return weight
