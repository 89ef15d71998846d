"""Give one module another forward, without another object: its class becomes a subclass of its own class.

The module stays an instance of its class, its parameters and their names stay, and copies of it work. Pickled, it is
an instance of its first class again, so that whoever loads it needs no whet.
"""

import copy
import copyreg
import functools
from typing import Any

import torch
from torch import nn

_ADDED = "_whet_added"
_EAGER = "_whet_is_eager"
_CLASSES: dict[tuple[type, type], type] = {}


class AddedForward:
    """Derive from this to change forward or another method: the subclass calls super().forward.

    torch.compile leaves a forward as it is where `is_eager` says so.
    """

    is_eager = False


def extend(module: nn.Module, added: type[AddedForward]) -> None:
    """Put a subclass's forward around the forward of one module. A module that has it already stays as it is."""
    base = type(module)
    if issubclass(base, added):
        return
    made = _CLASSES.get((base, added))
    if made is None:
        names: dict[str, Any] = {
            "__module__": base.__module__,
            "__qualname__": base.__qualname__,
            "__doc__": base.__doc__,
        }
        if not hasattr(base, "__deepcopy__"):
            names["__deepcopy__"] = _copied
        if "forward" in vars(added):
            names["forward"] = _with_signature(base, added)
        made = type(base.__name__, (added, base), {**names, "__reduce_ex__": _reduced, _ADDED: True})
        _CLASSES[base, added] = made
    module.__class__ = made


def _with_signature(base: type[nn.Module], added: type[AddedForward]) -> Any:
    """Return the added forward with the names and the signature of the first one, which libraries look at."""

    @functools.wraps(base.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return added.forward(self, *args, **kwargs)  # type: ignore[attr-defined]

    return forward


def keep_eager(module: nn.Module) -> None:
    """Have torch.compile call the forwards that must stay as they are, where a module has any."""
    for kind in type(module).__mro__:
        if kind is not AddedForward and issubclass(kind, AddedForward) and vars(kind).get("is_eager"):
            forward = vars(kind)["forward"]
            if not getattr(forward, _EAGER, False):
                disabled = torch.compiler.disable(forward)
                setattr(disabled, _EAGER, True)
                kind.forward = disabled  # type: ignore[attr-defined]


def must_stay_eager(module: nn.Module) -> bool:
    """Return whether torch.compile must leave a forward of a module as it is."""
    return any(issubclass(kind, AddedForward) and vars(kind).get("is_eager") for kind in type(module).__mro__)


def first_class(module: nn.Module) -> type:
    """Return the class that a module had before `extend`."""
    return next(kind for kind in type(module).__mro__ if not issubclass(kind, AddedForward))


def _reduced(module: nn.Module, protocol: Any) -> Any:
    """Return how pickle makes the module again: as an instance of its first class."""
    # The standard library's own function, so that loading needs no whet.
    return copyreg._reconstructor, (first_class(module), object, None), module.__getstate__()  # type: ignore[attr-defined]


def _copied(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """Return a deep copy, which keeps the added forward."""
    made = type(module).__new__(type(module))
    memo[id(module)] = made
    made.__setstate__(copy.deepcopy(module.__getstate__(), memo))
    return made
