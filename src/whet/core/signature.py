"""Flatten what a model takes and returns to tensors in order, and rebuild it from them.

Backends work with flat lists of tensors. People call models with positional tensors, keywords, constants and nested
containers, and get tuples, dicts or model-output objects back. A Signature translates between the two. It is small
enough to be saved as JSON beside an artefact, so that a loaded artefact is called as the original was.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from whet.core.pytree import (
    Constant,
    Outputs,
    PyTree,
    described,
    matches,
    read_input,
    read_output,
    rebuild_input,
    rebuild_output,
    tensors_in,
)
from whet.errors import InputsError

__all__ = ["Argument", "Batch", "FlatModel", "Outputs", "PyTree", "Signature", "argument_of", "map_tensors"]
__all__ += ["output_tensors", "read_output", "read_signature", "split", "tensors_of"]

Batch = Tensor | Sequence[Any] | Mapping[str, Any]

_FREEING = "a size is free where the batches that a model is tuned with differ in it: give inputs of both sizes"


@dataclass(frozen=True)
class Argument:
    """Describe one tensor that a model takes.

    Attributes:
        name: The tensor's name; None for a positional one. Inside a container it is the path, such as "cache[0]".
        dtype: The dtype's name, such as "float32".
        shape: The sizes; None for a free dimension.
    """

    name: str | None
    dtype: str
    shape: tuple[int | None, ...]

    def __str__(self) -> str:
        sizes = ", ".join("any" if size is None else str(size) for size in self.shape)
        return f"{self.name + ': ' if self.name else ''}{self.dtype}[{sizes}]"


@dataclass(frozen=True)
class Signature:
    """Describe how a model is called and what it returns. As text it is the call: (float32[any, 4], use_cache=False).

    Constants in `args` and `kwargs` are part of the signature and never change. `inputs` holds the tensors that the
    model takes, in order, positional ones first.
    """

    inputs: tuple[Argument, ...]
    output: PyTree
    args: tuple[PyTree, ...] = ()
    kwargs: dict[str, PyTree] = field(default_factory=dict)

    def __str__(self) -> str:
        tensors = (str(dataclasses.replace(argument, name=None)) for argument in self.inputs)
        named = [*((None, node) for node in self.args), *self.kwargs.items()]
        return f"({', '.join(_argument_as_text(name, node, tensors) for name, node in named)})"

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Tensor, ...]:
        """Return the tensors of one call, in the order of `inputs`.

        Arguments without tensors (constants) may be left out if the signature has them by name or last.

        Raises:
            InputsError: The call has other shapes or dtypes, another constant, or another structure.
        """
        flat: list[Tensor] = []
        left_out = itertools.chain(
            self.args[len(args) :], (node for name, node in self.kwargs.items() if name not in kwargs)
        )
        if (
            len(args) > len(self.args)
            or not kwargs.keys() <= self.kwargs.keys()
            or any(node.has_tensors for node in left_out)
            or not all(matches(node, value, flat) for node, value in zip(self.args, args, strict=False))
            or not all(matches(node, kwargs[name], flat) for name, node in self.kwargs.items() if name in kwargs)
            or not all(map(_fits, flat, self.inputs))
        ):
            wrong = f"this model takes {self} but was called with {_as_text(args, kwargs)}"
            raise InputsError(f"{wrong}; {_FREEING}" if _differs_in_size(self.inputs, flat) else wrong)
        return tuple(flat)

    def call(self, tensors: Sequence[Tensor]) -> tuple[list[Any], dict[str, Any]]:
        """Return the positional and keyword arguments of a call, from its tensors in order."""
        left = iter(tensors)
        args = [rebuild_input(node, left) for node in self.args]
        return args, {name: rebuild_input(node, left) for name, node in self.kwargs.items()}

    def unflatten(self, tensors: Sequence[Tensor]) -> Any:
        """Return what the model returns, from its tensors in order."""
        return rebuild_output(self.output, iter(tensors))

    @property
    def constants(self) -> dict[str, Constant]:
        """Return the constants that are given by name."""
        return {name: node.value for name, node in self.kwargs.items() if node.kind == "constant"}

    @property
    def dynamic_shapes(self) -> tuple[dict[int, Any], ...] | None:
        """Return the free dimensions in torch.export's form, or None where every dimension is fixed."""
        free = tuple({i: torch.export.Dim.AUTO for i, size in enumerate(a.shape) if size is None} for a in self.inputs)
        return free if any(free) else None

    @property
    def is_dynamic(self) -> bool:
        """Return whether any dimension is free."""
        return any(size is None for a in self.inputs for size in a.shape)


class FlatModel(nn.Module):
    """Wrap a model so that it takes flat tensors and returns a tuple of tensors.

    `shared` holds positions of outputs that share memory with something else. They are copied.
    """

    def __init__(self, model: nn.Module, signature: Signature, shared: Sequence[int] = ()) -> None:
        super().__init__()
        self.model = model
        self.signature = signature
        self.shared = tuple(shared)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        args, kwargs = self.signature.call(tensors)
        model: Any = self.model
        if isinstance(model, torch.jit.ScriptModule) and torch.compiler.is_exporting():
            model = model._c._get_method("forward")  # torch.export cannot trace a ScriptModule's Python wrapper
        outputs = enumerate(tensors_in(model(*args, **kwargs)))
        return tuple(y.clone() if i in self.shared else y for i, y in outputs)


def split(batch: Batch) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a batch as positional and keyword arguments: it is a tensor, a sequence, or a mapping by name."""
    if isinstance(batch, Tensor):
        return (batch,), {}
    if isinstance(batch, Mapping):
        return (), dict(batch)
    if isinstance(batch, list | tuple):
        return tuple(batch), {}
    raise InputsError(f"a batch must be a tensor, a tuple of tensors or a dict of tensors, not {type(batch).__name__}")


def read_signature(batches: Sequence[Batch], output: Any, *, seen: Sequence[Batch] = ()) -> Signature:
    """Return the signature of a model that takes `batches` and returned `output` for the first of them.

    Dimensions whose size differs among `batches` and the `seen` calls become free.

    Raises:
        InputsError: The calls differ in structure, names, dtypes, numbers of dimensions or constants.
    """
    first = _read_call(batches[0], output)
    arguments = first.inputs
    for batch in [*batches[1:], *seen]:
        args, kwargs = split(batch)
        tensors: list[Tensor] = []
        fits = (
            (len(args), kwargs.keys()) == (len(first.args), first.kwargs.keys())
            and all(map(lambda node, value: matches(node, value, tensors), first.args, args))
            and all(matches(node, kwargs[name], tensors) for name, node in first.kwargs.items())
        )
        others = [argument_of(None, tensor) for tensor in tensors] if fits else []
        if not fits or list(map(_kind, others)) != list(map(_kind, arguments)):
            other = _read_call(batch, output)
            raise InputsError(
                f"the model is called with inputs of different kinds: {first} and {other}; give every batch, and every "
                "call in the quality function, the same names, types, number of dimensions and constants"
            )
        arguments = tuple(
            dataclasses.replace(a, shape=tuple(i if i == j else None for i, j in zip(a.shape, b.shape, strict=True)))
            for a, b in zip(arguments, others, strict=True)
        )
    return dataclasses.replace(first, inputs=arguments)


def free_dimensions(
    signature: Signature, batches: Sequence[Sequence[Tensor]]
) -> dict[tuple[int, ...], list[tuple[int, int]]]:
    """Group the free dimensions, as (input, dimension), by the sizes that they take, batch by batch of flat inputs."""
    groups: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for i, argument in enumerate(signature.inputs):
        for dim, size in enumerate(argument.shape):
            if size is None:
                groups.setdefault(tuple(batch[i].shape[dim] for batch in batches), []).append((i, dim))
    return groups


def output_tensors(output: Any) -> tuple[Tensor, ...]:
    return tuple(tensors_in(output))


def tensors_of(batch: Batch) -> tuple[Tensor, ...]:
    """Return the tensors of a batch, in order, those inside containers too."""
    args, kwargs = split(batch)
    return tuple(itertools.chain.from_iterable(map(tensors_in, [*args, *kwargs.values()])))


def map_tensors(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    """Return a batch with `change` applied to each tensor; containers and constants stay as they are."""
    if isinstance(batch, Tensor):
        changed: Tensor = change(batch)
        return changed
    args, kwargs = split(batch)

    def mapped(value: Any, name: str) -> Any:
        return rebuild_input(read_input(value, name), map(change, tensors_in(value)))

    if kwargs:
        return {name: mapped(value, name) for name, value in kwargs.items()}
    return tuple(mapped(value, str(i)) for i, value in enumerate(args))


def argument_of(name: str | None, tensor: Tensor) -> Argument:
    """Return a tensor's Argument, with all sizes fixed; as text `float32[4, 8]`, after the name where there is one."""
    return Argument(name, _DTYPE_NAMES[tensor.dtype], tuple(tensor.shape))


def _read_call(batch: Batch, output: Any) -> Signature:
    """Return the signature of one call, with all sizes fixed."""
    args, kwargs = split(batch)
    nodes = tuple(read_input(value, str(i)) for i, value in enumerate(args))
    named = {name: read_input(value, name) for name, value in kwargs.items()}
    inputs = [argument for i, value in enumerate(args) for argument in _arguments(value, None, f"{i}")]
    inputs += [argument for name, value in kwargs.items() for argument in _arguments(value, name, name)]
    if not inputs:
        raise InputsError("a batch holds no tensor; give a tensor, a tuple of tensors or a dict of tensors")
    return Signature(tuple(inputs), read_output(output), nodes, named)


def _arguments(value: Any, name: str | None, path: str) -> list[Argument]:
    """Return the Arguments of one argument of a call: those of a container are numbered."""
    if isinstance(value, Tensor):
        return [argument_of(name, value)]
    return [argument_of(f"{path}[{i}]", tensor) for i, tensor in enumerate(tensors_in(value))]


def _fits(tensor: Tensor, argument: Argument) -> bool:
    """Return whether a tensor has the dtype and the fixed sizes of an argument."""
    return (
        tensor.layout is torch.strided
        and tensor.dim() == len(argument.shape)
        and all(want is None or want == size for want, size in zip(argument.shape, tensor.shape, strict=True))
        and _DTYPE_NAMES[tensor.dtype] == argument.dtype
    )


_DTYPE_NAMES = {
    dtype: str(dtype).removeprefix("torch.") for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)
}


def _differs_in_size(arguments: Sequence[Argument], values: Sequence[Any]) -> bool:
    """Return whether values are tensors of the right kinds, but one has another size beyond its first dimension.

    Batch sizes are tried when a model is tuned; a fixed one has a reason.
    """
    tensors = [x for x in values if isinstance(x, Tensor)]
    return [_kind(a) for a in arguments] == [_kind(argument_of(None, x)) for x in tensors] and any(
        want not in (None, size)
        for argument, tensor in zip(arguments, tensors, strict=True)
        for want, size in zip(argument.shape[1:], tensor.shape[1:], strict=True)
    )


def _kind(argument: Argument) -> tuple[str, int]:
    """Return the dtype and the number of dimensions."""
    return argument.dtype, len(argument.shape)


def _as_text(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return any call as text, even one with unsupported arguments."""
    return f"({', '.join([*(_word(None, value) for value in args), *(_word(*pair) for pair in kwargs.items())])})"


def _word(name: str | None, value: Any) -> str:
    """Return one argument of a call as text."""
    try:
        node = read_input(value, "")
    except InputsError:
        return f"{name or 'positional'}: {type(value).__name__}"
    return _argument_as_text(name, node, map(str, (argument_of(None, tensor) for tensor in tensors_in(value))))


def _argument_as_text(name: str | None, node: PyTree, tensors: Iterator[str]) -> str:
    text = described(node, tensors)
    if name is None:
        return text
    return f"{name}={text}" if node.kind == "constant" else f"{name}: {text}"
