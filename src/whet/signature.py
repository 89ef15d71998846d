"""What a model takes and gives, flattened to tensors in order.

Backends speak in flat lists of tensors; people call models with positional tensors, keywords and dicts, and get
tuples, dicts or model-output objects back. A Signature is the translation, small enough to be saved as JSON
beside an artefact, so that a loaded artefact is called as the original was.
"""

import dataclasses
from collections import namedtuple
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from whet.errors import InputsError, TargetError

Batch = Tensor | Sequence[Any] | Mapping[str, Any]
Constant = bool | int | float | str | None

_CONSTANTS = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class Argument:
    """One tensor a model takes. `name` is None for a positional one; a free dimension's size is None."""

    name: str | None
    dtype: str
    shape: tuple[int | None, ...]

    def __str__(self) -> str:
        sizes = ", ".join("any" if size is None else str(size) for size in self.shape)
        return f"{self.name + ': ' if self.name else ''}{self.dtype}[{sizes}]"


@dataclass(frozen=True)
class Output:
    """A node of what a model gives: a tensor, a constant, or a tuple or dict of nodes."""

    kind: str  # "tensor", "constant", "tuple", "namedtuple" or "dict"
    value: Constant = None  # of a constant
    keys: tuple[str, ...] = ()  # of a dict or a namedtuple
    items: tuple["Output", ...] = ()  # of a tuple, a namedtuple or a dict


class Outputs(dict[str, Any]):
    """A dict of outputs whose entries are attributes too, and can be had by position, as in Hugging Face models."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __getitem__(self, key: str | int | slice) -> Any:
        return tuple(self.values())[key] if isinstance(key, int | slice) else super().__getitem__(key)


@dataclass(frozen=True)
class Signature:
    """How a model is called and what it returns.

    inputs: the tensors taken, positional ones first. constants: keyword arguments that are no tensors and never
    change. output: the shape of what is returned.
    """

    inputs: tuple[Argument, ...]
    constants: dict[str, Constant]
    output: Output

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Tensor, ...]:
        """The tensors of one call, in the order of `inputs`.

        Constants may be left out; given, they must be what they were. Raises InputsError on any other call.
        """
        flat = (*args, *(kwargs.get(a.name) for a in self.inputs if a.name is not None))
        extra = kwargs.keys() - {a.name for a in self.inputs}
        if (
            len(flat) != len(self.inputs)
            or not all(map(_fits, flat, self.inputs))
            or not all(name in self.constants and _same(kwargs[name], self.constants[name]) for name in extra)
        ):
            raise InputsError(self._mismatch(args, kwargs))
        return flat

    def unflatten(self, tensors: Sequence[Tensor]) -> Any:
        """What the model returns, from its tensors in order."""
        return _rebuild(self.output, iter(tensors))

    @property
    def dynamic_shapes(self) -> tuple[dict[int, Any], ...] | None:
        """Free dimensions as torch.export wants them, or None where every dimension is fixed."""
        free = tuple({i: torch.export.Dim.AUTO for i, size in enumerate(a.shape) if size is None} for a in self.inputs)
        return free if any(free) else None

    @property
    def is_dynamic(self) -> bool:
        return any(size is None for a in self.inputs for size in a.shape)

    def _mismatch(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        wanted = _describe(self.inputs, self.constants)
        given = ", ".join(
            str(argument_of(name, value))
            if isinstance(value, Tensor)
            else f"{name}={value!r}"
            if name and isinstance(value, _CONSTANTS)
            else f"{name or 'positional'}: {type(value).__name__}"
            for name, value in [(None, a) for a in args] + list(kwargs.items())
        )
        return f"this model takes ({wanted}) but was called with ({given})"


class FlatModel(nn.Module):
    """The model behind a signature: tensors in, a tuple of tensors out.

    shared: the places of outputs that share memory with something else; here they get memory of their own.
    """

    def __init__(self, model: nn.Module, signature: Signature, shared: Sequence[int] = ()) -> None:
        super().__init__()
        self.model = model
        self.shared = tuple(shared)
        self.names = tuple(a.name for a in signature.inputs)
        self.constants = dict(signature.constants)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        args = [t for t, name in zip(tensors, self.names, strict=True) if name is None]
        kwargs = {name: t for t, name in zip(tensors, self.names, strict=True) if name is not None}
        outputs = enumerate(_tensors(self.model(*args, **kwargs, **self.constants)))
        return tuple(y.clone() if i in self.shared else y for i, y in outputs)


def split(batch: Batch) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A batch as positional and keyword arguments: a tensor, a sequence, or a mapping by name."""
    if isinstance(batch, Tensor):
        return (batch,), {}
    if isinstance(batch, Mapping):
        return (), dict(batch)
    if isinstance(batch, list | tuple):
        return tuple(batch), {}
    raise InputsError(f"a batch must be a tensor, a tuple of tensors or a dict of tensors, not {type(batch).__name__}")


def read_signature(batches: Sequence[Batch], output: Any, *, seen: Sequence[Batch] = ()) -> Signature:
    """The signature of a model that takes `batches` and returned `output` for the first of them.

    Dimensions whose size differs among `batches` and the `seen` calls become free.
    """
    arguments, constants = _read_arguments(batches[0])
    places = {a.name: i for i, a in enumerate(arguments)}
    for batch in [*batches[1:], *seen]:
        others, other_constants = _read_arguments(batch)
        others.sort(key=lambda a: places.get(a.name, len(places)))  # keywords may come in any order
        if list(map(_kind, others)) != list(map(_kind, arguments)) or other_constants != constants:
            raise InputsError(
                f"the model is called with inputs of different kinds: ({_describe(arguments, constants)}) and "
                f"({_describe(others, other_constants)}); give every batch, and every call in the quality function, "
                "the same names, types, number of dimensions and constants"
            )
        arguments = [
            dataclasses.replace(a, shape=tuple(i if i == j else None for i, j in zip(a.shape, b.shape, strict=True)))
            for a, b in zip(arguments, others, strict=True)
        ]
    return Signature(tuple(arguments), constants, read_output(output))


def output_tensors(output: Any) -> tuple[Tensor, ...]:
    """The tensors in what a model returned, in order."""
    return tuple(_tensors(output))


def _read_arguments(batch: Batch) -> tuple[list[Argument], dict[str, Constant]]:
    args, kwargs = split(batch)
    arguments: list[Argument] = []
    constants: dict[str, Constant] = {}
    for name, value in [(None, a) for a in args] + list(kwargs.items()):
        if isinstance(value, Tensor):
            arguments.append(argument_of(name, value))
        elif name is not None and isinstance(value, _CONSTANTS):
            constants[name] = value
        else:
            raise InputsError(f"input {name or len(arguments)} is a {type(value).__name__}; whet takes tensors")
    if not arguments:
        raise InputsError("a batch holds no tensor")
    return arguments, constants


def read_output(output: Any) -> Output:
    """The structure of what a model returned. Raises TargetError for anything but tensors, constants and containers."""
    if isinstance(output, Tensor):
        return Output("tensor")
    if isinstance(output, _CONSTANTS):
        return Output("constant", value=output)
    if isinstance(output, Mapping):
        return Output("dict", keys=tuple(map(str, output)), items=tuple(map(read_output, output.values())))
    if isinstance(output, list | tuple):
        names = tuple(getattr(output, "_fields", ()))
        return Output("namedtuple" if names else "tuple", keys=names, items=tuple(map(read_output, output)))
    raise TargetError(
        f"the model returns a {type(output).__name__}; whet handles tensors and tuples, lists and dicts of them "
        "(for a Hugging Face model with a cache, set config.use_cache = False)"
    )


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, torch.SymInt | torch.SymFloat | torch.SymBool):  # a number, while torch.export traces
        raise TargetError("the model returns a number that depends on its inputs; return it as a tensor")
    elif isinstance(output, Mapping):
        for item in output.values():
            yield from _tensors(item)
    elif isinstance(output, list | tuple):
        for item in output:
            yield from _tensors(item)


def _rebuild(output: Output, tensors: Iterator[Tensor]) -> Any:
    if output.kind == "tensor":
        return next(tensors)
    if output.kind == "constant":
        return output.value
    if output.kind == "dict":
        return Outputs((key, _rebuild(item, tensors)) for key, item in zip(output.keys, output.items, strict=True))
    items = [_rebuild(item, tensors) for item in output.items]
    return _named(output.keys)(*items) if output.kind == "namedtuple" else tuple(items)


@cache
def _named(names: tuple[str, ...]) -> Any:
    return namedtuple("Outputs", names)


def _fits(value: Any, argument: Argument) -> bool:
    return (
        isinstance(value, Tensor)
        and value.layout is torch.strided
        and value.dim() == len(argument.shape)
        and all(want is None or want == size for want, size in zip(argument.shape, value.shape, strict=True))
        and _DTYPE_NAMES[value.dtype] == argument.dtype
    )


_DTYPE_NAMES = {
    dtype: str(dtype).removeprefix("torch.") for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)
}


def _same(value: Any, constant: Constant) -> bool:
    return type(value) is type(constant) and value == constant


def argument_of(name: str | None, tensor: Tensor) -> Argument:
    """All of its sizes are fixed; as text `float32[4, 8]`, after the name where there is one."""
    return Argument(name, _DTYPE_NAMES[tensor.dtype], tuple(tensor.shape))


def _kind(argument: Argument) -> tuple[str | None, str, int]:
    return argument.name, argument.dtype, len(argument.shape)


def _describe(arguments: Sequence[Argument], constants: Mapping[str, Constant]) -> str:
    return ", ".join([*map(str, arguments), *(f"{name}={value!r}" for name, value in constants.items())])
