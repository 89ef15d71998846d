"""Record what a model remembers between calls, as a flat table that can be compared with a later one.

A model's graph starts from the state at its export, and never changes it. So a model whose state keeps changing cannot
be replaced by a graph. State that settles after the first call (a cache of rotary tables) is harmless.
"""

import enum
import itertools
import operator
import random
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Set
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

State = dict[str, Any]
"""Where a value is found -> a copy of the value, or of what tells that it changed."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None), enum.Enum, torch.dtype, torch.device, torch.Size)
_OPAQUE = (type, ModuleType, FunctionType, MethodType, CodeType)
_DEEPEST = 5
_MOST_VALUES = 200_000  # a state with more is compared up to here
_MOST_BYTES = 2**26  # of a tensor that is copied; a larger one is known by its version and its place in memory
_OF_MODULES = frozenset(vars(nn.Module())) - {"_parameters", "_buffers"}  # what every module has and PyTorch manages


def state_of(model: nn.Module, more: Mapping[str, Any]) -> State:
    """Return the state of all modules: parameters, buffers, their own attributes and those of their classes.

    `more` holds other values that belong to the state, by name.
    """
    roots: dict[str, Any] = {}
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if key in ("_parameters", "_buffers"):
                roots |= {_join(name, tensor_name): tensor for tensor_name, tensor in value.items()}
            elif key not in _OF_MODULES:
                roots[_join(name, key)] = value
        for owner in type(module).__mro__:
            if not owner.__module__.startswith("torch."):
                roots |= {f"{owner.__name__}.{k}": v for k, v in vars(owner).items() if not k.startswith("__")}
    return _copied({**roots, **more}, {id(module) for module in model.modules()})


def _copied(roots: Mapping[str, Any], seen: set[int]) -> State:
    """Copies of everything that the given values hold, but for what was seen already."""
    found: State = {}
    for name, value in roots.items():
        for path, leaf in _leaves(value, name, 0, seen):
            found[path] = leaf
            if len(found) >= _MOST_VALUES:
                return found
    return found


def changes(before: State, after: State) -> list[str]:
    """Return the names of what was added, taken away or changed."""
    both = before.keys() & after.keys()
    return [k for k in after if k not in both] + [k for k in before if k not in both or not _same(before[k], after[k])]


def random_states() -> dict[str, Any]:
    """Return the state of Python's generator of random numbers, and of NumPy's where NumPy is imported."""
    numpy = sys.modules.get("numpy")
    states: dict[str, Any] = {"Python's random numbers": random.getstate()}
    if numpy is not None:
        states["NumPy's random numbers"] = repr(numpy.random.get_state(legacy=False))
    return states


def _leaves(value: Any, path: str, depth: int, seen: set[int]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, _PLAIN):
        yield path, value
    elif depth > _DEEPEST or id(value) in seen or isinstance(value, _OPAQUE):
        return
    elif (leaf := _leaf(value)) is not None:
        seen.add(id(value))
        yield path, leaf
    else:
        seen.add(id(value))
        children = list(_children(value, path))
        yield f"{path} (size)", len(children)
        for name, child in children:
            yield from _leaves(child, name, depth + 1, seen)


def _leaf(value: Any) -> Any:
    """Return a copy of a value that is not looked into, or None where it has parts."""
    if isinstance(value, Tensor):
        return _tensor(value)
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, itertools.count):
        return repr(value)
    if hasattr(value, "__next__"):
        return operator.length_hint(value, -1)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return value.copy()
    if numpy is not None and isinstance(value, numpy.random.Generator):
        return repr(value.bit_generator.state)
    if numpy is not None and isinstance(value, numpy.random.RandomState):
        return repr(value.get_state(legacy=False))
    return None


def _tensor(tensor: Tensor) -> Any:
    version = -1 if tensor.is_inference() else tensor._version
    is_kept = isinstance(tensor, nn.Parameter) or tensor.numel() * tensor.element_size() > _MOST_BYTES
    if is_kept or tensor.layout is not torch.strided or tensor.is_meta:
        return (version, tuple(tensor.shape), id(tensor))
    return tensor.detach().clone()


def _children(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in list(dict.items(value)):  # not items() of a subclass, which may load what it names
            yield f"{path}[{_shown(key)}]", item
    elif isinstance(value, list | tuple | deque):
        for i, item in enumerate(list(value)):
            yield f"{path}[{i}]", item
    elif isinstance(value, Set):
        yield from ((f"{path}[{shown}]", None) for shown in sorted(map(_shown, value)))
    else:
        for key, item in list(getattr(value, "__dict__", {}).items()):
            if not (isinstance(value, nn.Module) and key in _OF_MODULES):
                yield f"{path}.{key}", item


def _shown(key: Any) -> str:
    """Return a short name of a key that is the same in a later look at it."""
    return repr(key)[:80] if isinstance(key, (*_PLAIN, tuple)) else f"{type(key).__name__} {id(key)}"


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and a.device == b.device and _equal(a, b)
    if type(a) is not type(b):
        return False
    if type(a).__module__ == "numpy":
        return bool(a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes())
    return bool(a == b) or (a != a and b != b)  # NaN is what it was


def _equal(a: Tensor, b: Tensor) -> bool:
    """Return whether tensors are equal up to rounding. Threads may sum numbers in another order each time."""
    if not (a.is_floating_point() or a.is_complex()):
        return torch.equal(a, b)
    return torch.allclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True)


def _join(name: str, attribute: str) -> str:
    return f"{name}.{attribute}" if name else attribute
