"""Let other code stand for the models of a stream: what whet tune made of them, where the inputs have its shapes."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from whet.models.diffusion.frame_diffusion import Call

Shapes = tuple[tuple[str, tuple[int | None, ...]], ...]
"""The shapes of a call's tensors, each with its place or its name. None stands for any size."""


def fits(shapes: Shapes, found: Shapes) -> bool:
    """Return whether the shapes of a call are those that something takes."""
    return len(shapes) == len(found) and all(
        name == other and len(shape) == len(sizes) and all(a in (None, b) for a, b in zip(shape, sizes, strict=True))
        for (name, shape), (other, sizes) in zip(shapes, found, strict=True)
    )


def shapes_of(args: Sequence[Tensor], named: Mapping[str, Tensor]) -> Shapes:
    """Return the shapes of a call's tensors, in the order of their places and then of their names."""
    by_place = [(str(place), tuple(x.shape)) for place, x in enumerate(args)]
    return (*by_place, *sorted((name, tuple(x.shape)) for name, x in named.items()))


@dataclass
class _Replaceable:
    """Call a model, or what stands for it."""

    original: Call
    replacement: Callable[..., Any] | None = None
    shapes: Shapes | None = None
    num_others: int = 0

    def __call__(self, *args: Tensor, **named: Tensor) -> Tensor:
        if self.replacement is None:
            return self.original(*args, **named)
        if self.shapes is not None and not fits(self.shapes, shapes_of(args, named)):
            self.num_others += 1
            return self.original(*args, **named)
        answer: Tensor = self.replacement(*args, **named)
        return answer


class Replacements:
    """Replace the calls of a step's models, and put them back.

    Args:
        step: A stream's step. Without `wrap` and `call_modules`, it has no calls to replace; nor without `reset`, since
            it is then opened anew for each stream.
    """

    def __init__(self, step: Any) -> None:
        self._calls: dict[str, _Replaceable] = {}
        if all(hasattr(step, name) for name in ("wrap", "call_modules", "reset")):
            step.wrap(self._replaceable)

    def _replaceable(self, name: str, call: Call) -> Call:
        self._calls[name] = _Replaceable(call)
        return self._calls[name]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._calls)

    @property
    def num_others(self) -> int:
        """Return how many calls had other shapes than what stands for them, and ran the model itself."""
        return sum(call.num_others for call in self._calls.values())

    def replace(self, name: str, replacement: Callable[..., Any], shapes: Shapes | None = None) -> None:
        """Let something stand for a call from now on.

        Args:
            replacement: Takes and returns what the call does.
            shapes: The shapes that it takes. A call of other shapes runs the model. None takes all.
        """
        self._calls[name].replacement, self._calls[name].shapes = replacement, shapes

    def put_back(self) -> None:
        """Let every call run its model again."""
        for call in self._calls.values():
            call.replacement = call.shapes = None

    @contextmanager
    def replaced(self, name: str, replacement: Callable[..., Any], shapes: Shapes | None = None) -> Any:
        call = self._calls[name]
        before = call.replacement, call.shapes
        self.replace(name, replacement, shapes)
        try:
            yield
        finally:
            call.replacement, call.shapes = before
