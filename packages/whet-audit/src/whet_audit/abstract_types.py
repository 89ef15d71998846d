"""What kinds of things rules tell apart: tensors, models, loaders, numbers; and how surely that is known."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from whet_audit import torch_names
from whet_audit.source import Class, Module


class Kind(Enum):
    """What rules tell apart."""

    TENSOR = "tensor"
    MODEL = "model"  # an nn.Module
    OUTPUT = "output of a model"  # a tensor, a tuple of them, or a dataclass with tensors
    OPTIMIZER = "optimizer"
    SCHEDULER = "scheduler"
    SCALER = "gradient scaler"
    LOADER = "loader"
    BATCH = "batch"  # what a loader gives: tensors in some structure
    DATASET = "dataset"
    TOKENIZER = "tokenizer"
    ENCODING = "encoding"  # what a tokenizer gives
    ARRAY = "array"  # of numpy
    FRAME = "data frame"
    NUMBER = "number"
    TEXT = "text"
    LIST = "list"
    DICT = "dict"
    DEVICE = "device"
    DTYPE = "dtype"
    NONE = "none"
    OTHER = "other"  # known, and none of these
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Value:
    """A kind, whether it follows from the code (is_sure) or from a name, and what else is known.

    cls: the project's class it is an instance of. element: of a list, dict or tuple. elements: of a tuple, one by one.
    device: "cpu" or "gpu" for a tensor known to be there. dotted: the library's class or function it came from.
    """

    kind: Kind = Kind.UNKNOWN
    is_sure: bool = True
    cls: Class | None = None
    element: Value | None = None
    elements: tuple[Value, ...] = ()
    device: str | None = None
    dotted: str | None = None

    def __bool__(self) -> bool:
        return self.kind is not Kind.UNKNOWN


UNKNOWN = Value()
NUMBER = Value(Kind.NUMBER)
TENSOR = Value(Kind.TENSOR)


def constant_value(value: object) -> Value:
    """Of a literal."""
    if value is None:
        return Value(Kind.NONE)
    if isinstance(value, int | float | complex):
        return NUMBER
    return Value(Kind.TEXT if isinstance(value, str | bytes) else Kind.OTHER)


def common(values: tuple[Value, ...]) -> Value | None:
    """What all elements are; None where they differ."""
    kinds = {value.kind for value in values}
    return values[0] if len(kinds) == 1 else None


def element_of(value: Value) -> Value:
    """What iterating over a value gives."""
    if value.kind is Kind.LOADER:
        return Value(Kind.BATCH, value.is_sure)
    if value.kind in (Kind.TENSOR, Kind.ARRAY, Kind.OUTPUT):
        return value
    if value.kind is Kind.BATCH:
        return Value(Kind.TENSOR, is_sure=False)
    return value.element or UNKNOWN


def part_of(value: Value, index: int) -> Value:
    """One element of what a tuple is unpacked from."""
    if value.elements:
        return value.elements[index] if -len(value.elements) <= index < len(value.elements) else UNKNOWN
    if value.kind is Kind.OUTPUT:
        return Value(Kind.TENSOR, is_sure=False)
    return element_of(value)


def all_on_cpu(values: Iterable[Value]) -> bool:
    """Whether all tensors among values, and in lists of them, are known to be in the CPU's memory."""
    tensors = [one.element if one.kind is Kind.LIST else one for one in values if one.kind in (Kind.TENSOR, Kind.LIST)]
    return bool(tensors) and all(one is not None and one.device == "cpu" for one in tensors)


def of_tensor_method(owner: Value, name: str, call: ast.Call) -> Value:
    """What a method of a tensor gives."""
    if name in ("item", "size", "dim", "numel", "stride", "nelement", "element_size", "get_device", "data_ptr"):
        return NUMBER
    if name in ("tolist", "split", "chunk", "unbind"):
        return Value(Kind.LIST, element=NUMBER if name == "tolist" else owner)
    if name in ("max", "min", "sort", "topk"):
        return Value(Kind.TENSOR, owner.is_sure, elements=(), device=owner.device)
    if name == "numpy":
        return Value(Kind.ARRAY)
    if name in ("backward", "register_hook", "equal") or name.startswith(("is_", "are_")):
        return Value(Kind.OTHER)
    if name in ("cpu", "to", "cuda"):
        target = call.args[0] if name == "to" and call.args else None
        is_cpu = isinstance(target, ast.Constant) and target.value == "cpu"
        device = "cpu" if is_cpu or name == "cpu" else "gpu" if name == "cuda" else None
        return Value(Kind.TENSOR, owner.is_sure, device=device)
    return Value(Kind.TENSOR, owner.is_sure, device=owner.device)


def guess(module: Module, name: str) -> Value:
    """By the name alone, as people name things in PyTorch code."""
    if not module.uses_torch:
        return UNKNOWN
    for pattern, kind in torch_names.GUESSES:
        if pattern.fullmatch(name):
            return Value(Kind[kind], is_sure=False)
    return UNKNOWN
