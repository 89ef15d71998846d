"""Call the small operators of a graph that stay in torch: what it makes of whole numbers and of sizes, such as masks.

An argument is written as a number, a bool or None, as a list of arguments, or as one of these:

    {"value": 3}          what the call of that index gave; with "item": 1, one of several
    {"input": 0}          a flat input
    {"tensor": "NAME"}    a stored tensor
    {"size": "2 * s0"}    a size
    {"float": "-inf"}     a number that JSON lacks
    {"dtype": "int64"}
    {"device": "cpu"}     where all calls are made
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from whet.core.artefact.native.program import Call
from whet.core.artefact.native.sizes import Sizes, check_size

OPERATORS = frozenset({
    "abs", "add", "alias", "all", "amax", "amin", "any", "arange", "argmax", "argmin", "bitwise_and", "bitwise_not",
    "bitwise_or", "bitwise_xor", "__and__", "__or__", "__xor__", "broadcast_to", "bucketize", "cat", "ceil",
    "chunk", "clamp", "clamp_max", "clamp_min", "clone", "constant_pad_nd", "contiguous", "copy", "cos", "cumsum",
    "detach", "diff", "div", "embedding", "eq", "exp", "expand", "expand_as", "fill", "flatten", "flip", "floor",
    "floor_divide", "fmod", "full", "full_like", "gather", "ge", "gt", "index", "index_put", "index_select",
    "isfinite", "isinf", "isnan", "le", "lift_fresh_copy", "log", "logical_and", "logical_not", "logical_or",
    "logical_xor", "lt", "mT", "masked_fill", "matmul", "max", "maximum", "mean", "min", "minimum", "movedim",
    "mul", "ne", "neg", "new_empty", "new_full", "new_ones", "new_zeros", "numpy_T", "ones", "ones_like", "outer",
    "pad", "permute", "pow", "reciprocal", "remainder", "repeat", "reshape", "roll", "round", "rsqrt", "rsub",
    "scalar_tensor", "select", "select_scatter", "sign", "sin", "slice", "slice_scatter", "split",
    "split_with_sizes", "sqrt", "square", "squeeze", "stack", "sub", "sum", "t", "to", "_to_copy", "transpose",
    "tril", "triu", "trunc", "type_as", "unbind", "unflatten", "unsqueeze", "_unsafe_view", "view", "view_as",
    "where", "zeros", "zeros_like",
})  # fmt: skip
"""The operators that may stay in torch, without their overloads. None of them writes into its arguments."""


@dataclass(frozen=True)
class _Ready:
    """Hold a call whose operator was found. It `varies` where it depends on the values of inputs."""

    function: Callable[..., Any]
    args: list[Any]
    kwargs: dict[str, Any]
    varies: bool


@dataclass(frozen=True)
class _Made:
    """Hold what the calls gave for some sizes, and the inputs that they read."""

    sizes: Sizes
    inputs: Mapping[int, Tensor]
    values: Mapping[int, Any]

    def was_given(self, inputs: Mapping[int, Tensor]) -> bool:
        """Return whether inputs are these, bit for bit. Of floats that is not asked: 0 equals -0."""
        return all(
            not given.is_floating_point() and given.dtype is self.inputs[i].dtype and torch.equal(given, self.inputs[i])
            for i, given in inputs.items()
        )


class TorchCalls:
    """Make the calls of a program.

    Raises:
        ValueError: A call is damaged, or of an operator that does not belong here.
    """

    def __init__(self, calls: Sequence[Call], tensors: Mapping[str, Tensor], free: Mapping[str, object]) -> None:
        self._tensors = tensors
        self._ready: list[_Ready] = []
        self._reads: set[int] = set()  # inputs
        self._last: _Made | None = None
        for call in calls:
            arguments = [*call.args, *call.kwargs.values()]
            varies = False
            for argument in arguments:
                varies |= self._check(argument, free)
            self._ready.append(_Ready(_function(call.operator), call.args, call.kwargs, varies))

    def varies(self, index: int) -> bool:
        """Return whether the value of a call depends on the values of inputs, and not on their sizes alone."""
        return self._ready[index].varies

    def fixed(self, sizes: Sizes) -> dict[int, Any]:
        """Return the values of the calls that depend on sizes alone."""
        found: dict[int, Any] = {}
        for i, call in enumerate(self._ready):
            if not call.varies:
                found[i] = self._made(call, sizes, found, {})
        return found

    def varying(self, sizes: Sizes, fixed: Mapping[int, Any], inputs: Sequence[Tensor]) -> Mapping[int, Any]:
        """Return the values of all calls, those of `fixed` among them; the last ones where the calls read the same."""
        read = {i: inputs[i] for i in self._reads}
        if self._last is not None and self._last.sizes is sizes and self._last.was_given(read):
            return self._last.values
        own = {i: tensor.clone() for i, tensor in read.items()}  # the caller's may change, and values be parts of them
        found = dict(fixed)
        for i, call in enumerate(self._ready):
            if call.varies:
                found[i] = self._made(call, sizes, found, own)
        self._last = _Made(sizes, own, found)
        return found

    def _made(self, call: _Ready, sizes: Sizes, found: Mapping[int, Any], inputs: Mapping[int, Tensor]) -> Any:
        def read(argument: Any) -> Any:
            if isinstance(argument, list):
                return [read(item) for item in argument]
            if not isinstance(argument, dict):
                return argument
            if "value" in argument:
                value = found[argument["value"]]
                return value[argument["item"]] if "item" in argument else value
            if "input" in argument:
                return inputs[argument["input"]]
            if "tensor" in argument:
                return self._tensors[argument["tensor"]]
            if "size" in argument:
                return sizes(argument["size"])
            if "device" in argument:
                return torch.device("cpu")
            return float(argument["float"]) if "float" in argument else getattr(torch, argument["dtype"])

        return call.function(*map(read, call.args), **{name: read(value) for name, value in call.kwargs.items()})

    def _check(self, argument: Any, free: Mapping[str, object]) -> bool:
        """Return whether an argument depends on the values of inputs; raise ValueError where it is damaged."""
        if argument is None or isinstance(argument, bool | int | float):
            return False
        if isinstance(argument, list):
            varies = [self._check(item, free) for item in argument]  # every item is checked
            return any(varies)
        match argument:
            case {"value": int(i), **rest} if 0 <= i < len(self._ready) and not rest.keys() - {"item"}:
                return self._ready[i].varies
            case {"input": int(i), **rest} if i >= 0 and not rest:
                self._reads.add(i)
                return True
            case {"tensor": str(name), **rest} if name in self._tensors and not rest:
                return False
            case {"size": str(size), **rest} if not rest:
                check_size(size, free)
                return False
            case {"float": ("inf" | "-inf" | "nan"), **rest} if not rest:
                return False
            case {"device": "cpu", **rest} if not rest:
                return False
            case {"dtype": str(name), **rest} if not rest and isinstance(getattr(torch, name, None), torch.dtype):
                return False
        raise ValueError(f"{str(argument)[:80]} is no argument of a call")


def _function(name: str) -> OpOverload:
    """Return an operator of aten by its name and overload, as "add.Tensor"."""
    packet, _, overload = name.partition(".")
    found = getattr(getattr(torch.ops.aten, packet, None), overload, None) if packet in OPERATORS else None
    if not isinstance(found, OpOverload) or found._schema.is_mutable:
        raise ValueError(f"{name[:80]!r} is no operator that stays in torch")
    return found
