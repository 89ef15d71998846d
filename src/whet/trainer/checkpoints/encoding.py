"""Write Python values as JSON so that they come back as they were: tuples, keys that are numbers, dtypes, tensors.

A value that JSON does not know becomes an object with one key that begins with "$": {"$tuple": [0.9, 0.999]}. Tensors
are kept apart, and their place holds their name. Nothing that is read can name a class or a function to be called,
except the few subclasses of tensors that are listed here.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from whet.errors import CheckpointError, OptionError, foreign, type_name

_PLAIN = (str, int, float, bool, type(None))
_SUBCLASSES = {
    "OptimState8bit": "torchao.optim.subclass_8bit",
    "OptimState4bit": "torchao.optim.subclass_4bit",
    "OptimStateFp8": "torchao.optim.subclass_fp8",
}


def is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor is no subclass, or one that differs in its name alone, or in where its parts lie."""
    return type(tensor) in (Tensor, nn.Parameter, DTensor)


def encoded(value: Any, tensors: dict[str, Tensor], name: str) -> Any:
    """Return a value as JSON, and put its tensors into a dict.

    Args:
        value: Numbers, texts, None, dtypes, tensors, small arrays of NumPy, and lists, tuples and dicts of them.
        tensors: Takes the tensors, under names that begin with `name`.
        name: What the value is called, as "optimizer.groups.0".

    Raises:
        OptionError: The value holds something else.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, Tensor):
        return _encoded_tensor(value, tensors, name)
    if kind in (list, tuple, torch.Size):
        items = [encoded(item, tensors, f"{name}.{index}") for index, item in enumerate(value)]
        return items if kind is list else {"$tuple" if kind is tuple else "$size": items}
    if isinstance(value, Mapping):
        if kind is not Counter and all(type(key) is str and not key.startswith("$") for key in value):
            return {key: encoded(item, tensors, f"{name}.{key}") for key, item in value.items()}
        keys = [encoded(key, tensors, f"{name}.{key}") for key in value]
        items = [encoded(item, tensors, f"{name}.{key}") for key, item in value.items()]
        return {"$counter" if kind is Counter else "$dict": [list(pair) for pair in zip(keys, items, strict=True)]}
    if isinstance(value, torch.dtype):
        return {"$dtype": str(value).removeprefix("torch.")}
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return {"$array": [value.dtype.str, list(value.shape), value.ravel().tolist()]}
    raise OptionError(
        f"{name} is {type_name(value)}, which a checkpoint does not hold; keep numbers, texts, tensors, or lists and "
        "dicts of them there"
    )


def _encoded_tensor(tensor: Tensor, tensors: dict[str, Tensor], name: str) -> Any:
    if is_plain(tensor):
        if name in tensors:
            raise OptionError(f"two tensors of a checkpoint are named {name!r}; rename a parameter")
        tensors[name] = tensor
        return {"$tensor": name}
    kind = type(tensor).__name__
    if _SUBCLASSES.get(kind) != type(tensor).__module__:
        raise OptionError(
            f"{name} is a tensor of the class {kind}, which a checkpoint does not hold; keep a plain tensor there"
        )
    names, context = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    parts = {part: _encoded_tensor(getattr(tensor, part), tensors, f"{name}.{part}") for part in names}
    return {"$subclass": [kind, parts, encoded(context, tensors, name)]}


def decoded(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return what `encoded` was given.

    Args:
        value: What `encoded` returned, as it came back from JSON.
        tensors: The tensors by name. They are not copied.

    Raises:
        CheckpointError: The value is damaged, or a tensor is missing.
    """
    if isinstance(value, list):
        return [decoded(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and (mark := next(iter(value))) in _DECODERS:
        with foreign(CheckpointError, f"the checkpoint is damaged where it holds {mark[1:]}"):
            return _DECODERS[mark](value[mark], tensors)
    return {key: decoded(item, tensors) for key, item in value.items()}


def _tensor(name: Any, tensors: Mapping[str, Tensor]) -> Tensor:
    if name not in tensors:
        raise CheckpointError(f"the checkpoint lacks the tensor {name}; load another one")
    return tensors[name]


def _subclass(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    kind, parts, context = value
    made: Any = getattr(import_module(_SUBCLASSES[kind]), kind)
    return made.__tensor_unflatten__(
        {name: decoded(part, tensors) for name, part in parts.items()}, decoded(context, {})
    )


def _dtype(value: Any, tensors: Mapping[str, Tensor]) -> torch.dtype:
    found = getattr(torch, value)
    if not isinstance(found, torch.dtype):
        raise CheckpointError(f"{value!r} is no dtype")
    return found


def _array(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    dtype, shape, items = value
    if np.dtype(dtype).kind not in "biuf":
        raise CheckpointError(f"arrays of {dtype} are not read")
    return np.array(items, dtype).reshape(shape)


def _pairs(value: Any, tensors: Mapping[str, Tensor]) -> dict[Any, Any]:
    return {decoded(key, tensors): decoded(item, tensors) for key, item in value}


_DECODERS: dict[str, Callable[[Any, Mapping[str, Tensor]], Any]] = {
    "$tensor": _tensor,
    "$subclass": _subclass,
    "$dtype": _dtype,
    "$array": _array,
    "$tuple": lambda value, tensors: tuple(decoded(value, tensors)),
    "$size": lambda value, tensors: torch.Size(value),
    "$dict": _pairs,
    "$counter": lambda value, tensors: Counter(_pairs(value, tensors)),
}


def json_text(values: Mapping[str, Any]) -> bytes:
    """Return values as JSON. Numbers that are not finite are written as Python reads them.

    Raises:
        OptionError: Something would not come back as it is.
    """
    _check_value(values, "values")
    return json.dumps(values).encode()


def _check_value(value: Any, name: str) -> None:
    kind = type(value)
    if kind in _PLAIN:
        return
    if kind is dict and all(type(key) is str for key in value):
        for key, item in value.items():
            _check_value(item, f"{name}.{key}")
    elif kind is list:
        for index, item in enumerate(value):
            _check_value(item, f"{name}.{index}")
    else:
        raise OptionError(
            f"{name} is {type_name(value)}, which JSON does not hold as it is; give texts, numbers, lists and dicts "
            "with texts as keys, or take it by state_of()"
        )
