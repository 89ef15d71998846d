"""Find who holds a tensor: its name in a model or an optimiser, or the container and variable that keep it alive."""

import gc
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from whet.profiling.model.allocations import Allocation, storage_key

_CONTAINERS = (list, tuple, set, dict, deque)
_NOT_REFERRERS = (types.FrameType, types.ModuleType, types.FunctionType, types.GeneratorType, type)
_MOST_LEVELS = 4
_MOST_REFERRERS = 200


@dataclass(frozen=True)
class LiveTensor:
    """Describe one of the largest storages alive, together with all others of its kind.

    Unnamed storages are of one kind if the same line allocated them with the same shape, dtype and device.

    Attributes:
        allocation: The largest storage of this kind.
        name: Its name, as "Encoder.head.weight"; "" if it has none.
    """

    allocation: Allocation
    name: str = ""
    count: int = 1


@dataclass
class LiveObjects:
    """Hold what Python can reach: tensors by their storage, and the modules and optimisers that name them."""

    tensors: dict[int, list[Tensor]] = field(default_factory=dict)
    modules: list[nn.Module] = field(default_factory=list)
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)


def live_objects() -> LiveObjects:
    """Collect all tensors, modules and optimisers that the garbage collector knows.

    They are recognised by type instead of isinstance, which would run the code of proxies. Objects that the program has
    frozen (gc.freeze) are unfrozen first, because the collector does not list them, and the list that grows may be one
    of them. They are not frozen again: that would freeze all other objects too, and none of those would be collected.
    """
    gc.unfreeze()
    found = LiveObjects()
    for thing in gc.get_objects():
        kind = type(thing)
        if issubclass(kind, Tensor):
            key = storage_key(thing) if thing.layout == torch.strided else None
            if key is not None:
                found.tensors.setdefault(key, []).append(thing)
        elif issubclass(kind, nn.Module):
            found.modules.append(thing)
        elif issubclass(kind, torch.optim.Optimizer):
            found.optimizers.append(thing)
    return found


def largest(alive: Sequence[Allocation], names: dict[int, str], count: int = 10) -> tuple[LiveTensor, ...]:
    """Return the largest storages alive, at most `count` kinds of them, with their names from `names_of`."""
    kinds: dict[Any, list[Allocation]] = {}
    for allocation in sorted(alive, key=lambda a: -a.num_bytes):
        name = names.get(allocation.key, "")
        kind = name or (allocation.line, allocation.shape, allocation.dtype, allocation.device)
        if kind in kinds or len(kinds) < count:
            kinds.setdefault(kind, []).append(allocation)
    return tuple(LiveTensor(found[0], names.get(found[0].key, ""), len(found)) for found in kinds.values())


def names_of(objects: LiveObjects) -> dict[int, str]:
    """Name the storages of parameters, buffers, gradients and optimiser state, by storage key.

    Parameters, buffers and gradients are named by the outermost module that holds them.
    """
    names: dict[int, str] = {}
    whose: dict[int, str] = {}
    inner = {id(child) for module in objects.modules for child in module.modules() if child is not module}
    for module in sorted(objects.modules, key=lambda m: id(m) in inner):  # outermost modules first
        for path, tensor in (*module.named_parameters(), *module.named_buffers()):
            key = storage_key(tensor)
            if key is None:
                continue
            name = names.setdefault(key, f"{type(module).__name__}.{path}")
            whose.setdefault(id(tensor), name)
            gradient = storage_key(tensor.grad) if tensor.is_leaf and tensor.grad is not None else None
            if gradient is not None:
                names.setdefault(gradient, f"gradient of {name}")
    for optimizer in objects.optimizers:
        for parameter, state in optimizer.state.items():
            for entry, value in state.items() if isinstance(state, dict) else ():
                key = storage_key(value) if isinstance(value, Tensor) else None
                if key is not None:
                    of = whose.get(id(parameter), "a parameter")
                    names.setdefault(key, f"{type(optimizer).__name__}'s {entry} of {of}")
    return names


def referrer_of(tensor: Tensor, *, ignore: Iterable[object] = ()) -> str:
    """Describe the container that keeps a tensor alive and the variable that names it.

    Frozen objects are unfrozen, as in `live_objects`. `ignore` holds containers that belong to the caller.

    Returns:
        A text as "the list 'losses' (in train)"; "" if no Python object holds the tensor, but autograd or a C++ object.
    """
    gc.unfreeze()
    # Python may keep a dict of a frame's variables. It holds the tensor too, but names nothing.
    hidden = {id(thing) for thing in ignore} | {id(frame.f_locals) for frame in _frames()}
    thing: Any = tensor
    for level in range(_MOST_LEVELS):
        named = _variable(thing) if level else ""  # a variable of the loop holds one tensor; look for what holds all
        if named:
            return f"the {type(thing).__name__} {named}"
        hidden.add(id(thing))
        following = _container(thing, hidden)
        if following is None:
            break
        thing = following
    return "" if thing is tensor else f"a {type(thing).__name__}"


def _container(thing: object, hidden: set[int]) -> Any:
    """Return what holds an object: the longest container, the likeliest to grow, or else an object with attributes."""
    found = [r for r in gc.get_referrers(thing) if id(r) not in hidden and not isinstance(r, _NOT_REFERRERS)]
    containers = [referrer for referrer in found if isinstance(referrer, _CONTAINERS)]
    if containers:
        return max(containers, key=len)
    return next((referrer for referrer in found if hasattr(referrer, "__dict__")), None)


def _variable(thing: object) -> str:
    """Return the name of an object: a local variable, an attribute or a global variable; "" if it has none."""
    for frame in _frames():
        function = frame.f_code.co_name
        name = "" if function == "<module>" else _name_in(frame.f_locals, thing)
        if name:
            return f"{name!r} (in {function})"
    for referrer in gc.get_referrers(thing)[:_MOST_REFERRERS]:
        if type(referrer) is dict:
            name, owner = _name_in(referrer, thing), _owner(referrer)
        elif hasattr(referrer, "__dict__") and not isinstance(referrer, _NOT_REFERRERS):
            name, owner = _name_in(vars(referrer), thing), type(referrer).__name__  # attributes need not be in a dict
        else:
            continue
        if name and owner:
            return f"'{owner}.{name}'"
    return ""


def _frames() -> Iterator[types.FrameType]:
    """Yield the frames of all threads, innermost first, without those of whet."""
    for frame in list(sys._current_frames().values()):
        step: types.FrameType | None = frame
        while step is not None:
            if not str(step.f_globals.get("__name__", "")).startswith("whet."):
                yield step
            step = step.f_back


def _name_in(names: Mapping[str, Any], thing: object) -> str:
    return next((name for name, value in list(names.items()) if value is thing and isinstance(name, str)), "")


def _owner(names: dict[str, Any]) -> str:
    """Return the name of the module, or of the class of the object, whose namespace this is; "" for any other dict."""
    if "__name__" in names and "__builtins__" in names:
        return str(names["__name__"])
    owners = (r for r in gc.get_referrers(names)[:_MOST_REFERRERS] if getattr(r, "__dict__", None) is names)
    return next((type(owner).__name__ for owner in owners), "")
