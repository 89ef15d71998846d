"""Describe the structure around the tensors of a call or a result: constants, tuples, lists, dicts and dataclasses.

A PyTree is a tree that is small enough to be saved as JSON. Together with the tensors, in order, it rebuilds the
value that it was read from.
"""

import dataclasses
from collections import namedtuple
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

import torch
from torch import Tensor

from whet.errors import InputsError, TargetError, type_name

Constant = bool | int | float | str | None

_CONSTANTS = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class PyTree:
    """Describe a node: a tensor, a constant or a container of nodes.

    Attributes:
        kind: "tensor", "constant", "tuple", "list", "namedtuple", "dict" or "dataclass".
        value: The value of a constant.
        keys: The keys of a dict, or the fields of a namedtuple or a dataclass.
        items: The nodes in a container.
        type: The class of a namedtuple, a mapping or a dataclass among the inputs, as module.name; "" for a plain
            container.
    """

    kind: str
    value: Constant = None
    keys: tuple[str, ...] = ()
    items: tuple["PyTree", ...] = ()
    type: str = ""

    @property
    def has_tensors(self) -> bool:
        return self.kind == "tensor" or any(item.has_tensors for item in self.items)


class Outputs(dict[str, Any]):
    """Hold outputs in a dict whose entries are also attributes and have positions, as in Hugging Face models."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __getitem__(self, key: str | int | slice) -> Any:
        return tuple(self.values())[key] if isinstance(key, int | slice) else super().__getitem__(key)


def read_output(output: Any) -> PyTree:
    """Return the structure of what a model returned. A list is read as a tuple.

    Raises:
        TargetError: The output holds something other than tensors, constants and containers of them.
    """
    if isinstance(output, Tensor):
        return PyTree("tensor")
    if isinstance(output, _CONSTANTS):
        return PyTree("constant", value=output)
    if isinstance(output, Mapping):
        return PyTree("dict", keys=tuple(map(str, output)), items=tuple(map(read_output, output.values())))
    if isinstance(output, list | tuple):
        names = tuple(getattr(output, "_fields", ()))
        return PyTree("namedtuple" if names else "tuple", keys=names, items=tuple(map(read_output, output)))
    raise TargetError(
        f"the model returns {type_name(output)}; whet handles tensors and tuples, lists and dicts of them "
        "(for a Hugging Face model with a cache, set config.use_cache = False)"
    )


def read_input(value: Any, path: str) -> PyTree:
    """Return the structure of one argument of a call. `path` is its name in messages, such as "mask" or "cache[0]".

    Raises:
        InputsError: The argument holds something other than tensors, constants and containers of them.
    """
    if isinstance(value, Tensor):
        return PyTree("tensor")
    if is_constant(value):
        return PyTree("constant", value=_plain(value))
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise InputsError(f"input {path} is a dict whose keys are not all strings; whet takes only string keys")
        items = tuple(read_input(item, f"{path}[{key!r}]") for key, item in value.items())
        return PyTree("dict", keys=tuple(value), items=items, type=_remember(type(value), dict))
    if isinstance(value, list | tuple):
        names = tuple(getattr(value, "_fields", ()))
        kind = "namedtuple" if names else "list" if isinstance(value, list) else "tuple"
        items = tuple(read_input(item, f"{path}[{i}]") for i, item in enumerate(value))
        return PyTree(kind, keys=names, items=items, type=_remember(type(value), list, tuple))
    if dataclasses.is_dataclass(value) and all(field.init for field in dataclasses.fields(value)):
        names = tuple(field.name for field in dataclasses.fields(value))
        items = tuple(read_input(getattr(value, name), f"{path}.{name}") for name in names)
        return PyTree("dataclass", keys=names, items=items, type=_remember(type(value)))
    raise InputsError(
        f"input {path} is {type_name(value)}; whet takes tensors, constants (int, float, bool, str, None), and "
        "tuples, lists, dicts and dataclasses of them"
    )


def tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):  # a number that torch.export traces
        raise TargetError("the model returns a number that depends on its inputs; return it as a tensor")
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name))


def matches(structure: PyTree, value: Any, found: list[Tensor]) -> bool:
    """Return whether a value has this structure and these constants; its tensors are appended to `found`, in order.

    The entries of a dict may come in any order. A dict with the fields of a dataclass, or of a mapping class, may stand
    for it, since whoever loads an artefact need not have the class.
    """
    if structure.kind == "tensor":
        found.append(value)
        return isinstance(value, Tensor)
    if structure.kind == "constant":
        return is_constant(value) and is_same(value, structure.value)
    if structure.kind in ("dict", "dataclass"):
        entries = _entries(value)
        return (
            entries is not None
            and entries.keys() == set(structure.keys)
            and all(matches(item, entries[k], found) for k, item in zip(structure.keys, structure.items, strict=True))
        )
    return (
        isinstance(value, list if structure.kind == "list" else tuple)
        and tuple(getattr(value, "_fields", ())) == structure.keys
        and len(value) == len(structure.items)
        and all(matches(item, v, found) for item, v in zip(structure.items, value, strict=True))
    )


def rebuild_output(structure: PyTree, tensors: Iterator[Tensor]) -> Any:
    """Return what the model returned: mappings as Outputs, namedtuples with their names, lists as tuples."""
    if structure.kind == "tensor":
        return next(tensors)
    if structure.kind == "constant":
        return structure.value
    items = [rebuild_output(item, tensors) for item in structure.items]
    if structure.kind == "dict":
        return Outputs(zip(structure.keys, items, strict=True))
    return _named(structure.keys)(*items) if structure.kind == "namedtuple" else tuple(items)


def rebuild_input(structure: PyTree, tensors: Iterator[Tensor]) -> Any:
    """Return an argument as the model takes it; raise InputsError for a class that read_input has not met here."""
    if structure.kind == "tensor":
        return next(tensors)
    if structure.kind == "constant":
        return structure.value
    items = [rebuild_input(item, tensors) for item in structure.items]
    if structure.type:
        if structure.type not in _CLASSES:
            raise InputsError(f"the class {structure.type} of an input is not known in this process")
        container: Any = _CLASSES[structure.type]
        if structure.kind in ("tuple", "list"):
            return container(items)
        if structure.kind == "namedtuple":
            return container(*items)
        entries = dict(zip(structure.keys, items, strict=True))
        # A mapping that is also a dataclass (a model-output object) takes its entries by name.
        return _CLASSES[structure.type](**entries) if dataclasses.is_dataclass(container) else container(entries)
    if structure.kind == "dict":
        return dict(zip(structure.keys, items, strict=True))
    return items if structure.kind == "list" else tuple(items)


def is_constant(value: Any) -> bool:
    """Return whether a value is a plain constant. A member of an Enum is none, since JSON would lose its class."""
    return isinstance(value, _CONSTANTS) and not isinstance(value, Enum)


def is_same(value: Constant, constant: Constant) -> bool:
    """Return whether two constants are of one type and equal: True is not 1, 1 is not 1.0, -0.0 is not 0.0."""
    value, constant = _plain(value), _plain(constant)
    return type(value) is type(constant) and repr(value) == repr(constant)


def described(structure: PyTree, tensors: Iterator[str]) -> str:
    """Return the structure as text. `tensors` is the text for each tensor, in order."""
    if structure.kind == "tensor":
        return next(tensors)
    if structure.kind == "constant":
        return repr(structure.value)
    items = [described(item, tensors) for item in structure.items]
    if structure.keys:
        name = structure.type.rpartition(".")[2]
        inner = ", ".join(f"{key}: {item}" for key, item in zip(structure.keys, items, strict=True))
        return f"{name}({inner})" if name else f"{{{inner}}}"
    ends = {"list": "[]", "dict": "{}"}.get(structure.kind, "()")
    return ends[0] + ", ".join(items) + ends[1]


# The classes of containers that read_input has met, by name. A signature that is read from JSON refers to these names.
_CLASSES: dict[str, Any] = {}


def _remember(container: type, *plain: type) -> str:
    """Return the name of a container's class, to be found again by rebuild_input; "" for a plain one."""
    if container in plain:
        return ""
    name = f"{container.__module__}.{container.__qualname__}"
    _CLASSES[name] = container
    return name


def _plain(value: Any) -> Constant:
    """Return a constant as one of Python's own types. A numpy.float64, for example, becomes a float."""
    own: Any = next(kind for kind in _CONSTANTS if isinstance(value, kind))
    plain: Constant = value if value is None or type(value) is own else own(value)
    return plain


def _entries(value: Any) -> Mapping[str, Any] | None:
    """Return the entries of a mapping or the fields of a dataclass, or None for other values."""
    if isinstance(value, Mapping):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


@cache
def _named(names: Sequence[str]) -> Any:
    return namedtuple("Outputs", names)
