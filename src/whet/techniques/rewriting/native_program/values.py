"""Say what a node of a graph stands for while it is lowered: a buffer, an input, a constant, a call of torch."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from whet.core.artefact.native.program import Call
from whet.core.artefact.native.torch_calls import OPERATORS
from whet.errors import TargetError
from whet.techniques.rewriting.graph import operator, value
from whet.techniques.rewriting.native_program.builder import Builder
from whet.techniques.rewriting.native_program.strided import Strided
from whet.techniques.rewriting.native_program.symbolic import size_of, written

_SMALL_TABLE = 4096  # numbers, of an embedding that torch may look up: such as a bias by relative position
_IGNORED = ("device", "layout", "pin_memory", "memory_format", "non_blocking", "copy")


@dataclass(frozen=True)
class Input:
    index: int


@dataclass(frozen=True)
class Fixed:
    """Hold a constant."""

    tensor: Tensor
    name: str = ""


@dataclass(frozen=True)
class Called:
    """Name the result of a call of torch."""

    index: int
    item: int | None = None


Value = Strided | Input | Fixed | Called | list[Any]
"""A node's value; a list where the operator gives several."""


def refuse(node: fx.Node, why: str = "") -> TargetError:
    """Return the error for what whet's kernels do not do."""
    name = str(node.target).removesuffix(".default")
    return TargetError(
        f"whet's native kernels do not compute {name}{f' {why}' if why else ''}; leave native out of the recipe"
    )


def named(node: fx.Node) -> dict[str, Any]:
    """Return the arguments of an operator by name, with its defaults."""
    assert isinstance(node.target, OpOverload)
    schema = node.target._schema.arguments
    found = {one.name: one.default_value for one in schema if one.has_default_value()}
    return found | dict(zip((one.name for one in schema), node.args, strict=False)) | dict(node.kwargs)


def stays_in_torch(node: fx.Node, env: dict[fx.Node, Value]) -> bool:
    """Return whether torch computes this: an operator on whole numbers, on sizes, and on what torch made of them."""
    if not isinstance(node.target, OpOverload) or _name(node.target) not in OPERATORS or node.target._schema.is_mutable:
        return False
    if operator(node) == "embedding":
        table, index = env[node.args[0]], env[node.args[1]]  # type: ignore[index]
        is_small = isinstance(table, Fixed) and table.tensor.numel() <= _SMALL_TABLE
        return is_small and not isinstance(index, Strided) and not _reads_inputs(node)
    return all(
        isinstance(found := env.get(source), Input | Fixed | Called)
        and not (isinstance(found, Input) and tensor.is_floating_point())
        for source in node.all_input_nodes
        if (tensor := value(source)) is not None
    )


def _name(target: OpOverload) -> str:
    return target._schema.name.removeprefix("aten::")


def is_constant(node: fx.Node, env: dict[fx.Node, Value]) -> bool:
    """Return whether a node is the same whatever the inputs and their sizes are."""
    return (
        isinstance(node.target, OpOverload)
        and not node.target._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in node.target.tags
        and all(isinstance(env.get(source), Fixed) for source in node.all_input_nodes)
    )


def folded(node: fx.Node, env: dict[fx.Node, Value]) -> Value:
    """Return a constant node's value."""

    def read(source: fx.Node) -> Any:
        found = env[source]
        assert isinstance(found, Fixed)
        return found.tensor

    with torch.no_grad():
        found = node.target(*fx.map_arg(node.args, read), **fx.map_arg(node.kwargs, read))  # type: ignore[operator]
    return Fixed(found) if isinstance(found, Tensor) else [Fixed(tensor) for tensor in found]


def called(node: fx.Node, env: dict[fx.Node, Value], builder: Builder) -> Value:
    """Have torch compute a node."""
    args = [argument(arg, env, builder) for arg in node.args]
    kwargs = {name: argument(arg, env, builder) for name, arg in node.kwargs.items() if name not in _IGNORED}
    assert isinstance(node.target, OpOverload)
    builder.calls.append(Call(f"{_name(node.target)}.{node.target._overloadname}", args, kwargs))
    index = len(builder.calls) - 1
    found = node.meta.get("val")
    return [Called(index, i) for i in range(len(found))] if isinstance(found, list | tuple) else Called(index)


def argument(arg: Any, env: dict[fx.Node, Value], builder: Builder) -> Any:
    """Return an argument of a call of torch as the program holds it."""
    if isinstance(arg, list | tuple):
        return [argument(item, env, builder) for item in arg]
    if isinstance(arg, torch.dtype):
        return {"dtype": str(arg).removeprefix("torch.")}
    if isinstance(arg, torch.device) and arg.type == "cpu":
        return {"device": "cpu"}
    if isinstance(arg, float) and not math.isfinite(arg):
        return {"float": str(arg)}
    if arg is None or isinstance(arg, bool | int | float):
        return arg
    if not isinstance(arg, fx.Node):
        raise TargetError(f"whet's native program cannot hold the argument {arg!r}; leave native out of the recipe")
    if arg in env:
        return reference(env[arg], builder)
    size = written(size_of(arg.meta["val"]))
    return size if isinstance(size, int) else {"size": size}


def reference(found: Value, builder: Builder) -> Any:
    """Return what names a value in the arguments of a call."""
    match found:
        case Input(index):
            return {"input": index}
        case Fixed(tensor, name):
            return {"tensor": builder.stored(tensor, name)}
        case Called(index, None):
            return {"value": index}
        case Called(index, item):
            return {"value": index, "item": item}
    raise TypeError(f"{found} is computed by no call of torch")


def _reads_inputs(node: fx.Node) -> bool:
    """Return whether a node depends on the values of inputs, and not on their sizes alone."""
    waiting, seen = [node], {node}
    while waiting:
        last = waiting.pop()
        if last.op == "placeholder":
            return True
        sources = [s for s in last.all_input_nodes if s not in seen and value(s) is not None]
        seen.update(sources)
        waiting += sources
    return False
