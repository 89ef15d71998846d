"""Lower what looks up rows: embeddings, and activations by index."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from whet.core.artefact.native.program import Call, EmbedStep, GatherStep
from whet.techniques.rewriting.graph import value
from whet.techniques.rewriting.native_program.strided import Strided
from whet.techniques.rewriting.native_program.symbolic import Size, same_all, shape_of, written
from whet.techniques.rewriting.native_program.values import Value, named, reference, refuse

if TYPE_CHECKING:
    from whet.techniques.rewriting.native_program.lowering import Lowering

_LOWEST = -1e30  # what scores are set to that a softmax is to leave out


def embedding(low: "Lowering", node: fx.Node) -> Value:
    return embeddings(low, node, [node])


def embeddings(low: "Lowering", node: fx.Node, terms: Sequence[fx.Node]) -> Value:
    """Lower the sum of several embeddings."""
    shape = low.shape(node)
    tables, indices = [], []
    for term in terms:
        table = low.fixed(term.args[0])
        if table is None or table.dtype is not torch.float32 or table.dim() != 2:
            raise refuse(term, "on such a table")
        place = low.tensor(term.args[0])
        low.builder.tables.add(str(low.builder.buffers[place.buffer].source))
        tables.append(place)
        indices.append(_indices(low, term.args[1], shape[:-1]))
    out = low.builder.room(shape)
    low.builder.steps.append(EmbedStep(tuple(t for t in tables), tuple(i for i in indices), out))
    return out


def _indices(low: "Lowering", node: Any, shape: Sequence[Size]) -> Strided:
    """Return indices as int64, broadcast to a shape."""
    found = value(node)
    if found is None or found.dtype is not torch.int64:
        raise refuse(node, "as indices that are not int64")
    return low.tensor(node).expanded(shape)


def index(low: "Lowering", node: fx.Node) -> Value:
    """Lower x[i, j], where whole numbers that torch computes are indices into all dimensions but the last."""
    given = named(node)
    x, indices = low.tensor(given["self"]), list(given["indices"])
    found = [None if one is None else value(one) for one in indices]
    is_known = all(one is not None and one.dtype is torch.int64 for one in found)
    if x.dim != len(indices) + 1 or not is_known or any(isinstance(low.env[one], Strided) for one in indices):
        raise refuse(node)
    shape = low.shape(node)
    row = low.builder.value(_row(low, indices, x.shape), "int64", shape[:-1])
    out = low.builder.room(shape)
    low.builder.steps.append(EmbedStep((low.rows(x),), (row,), out))
    return out


def gather(low: "Lowering", node: fx.Node) -> Value:
    """Lower the numbers along the last dimension that whole numbers name, which torch computes."""
    given = named(node)
    x, found = low.tensor(given["self"]), value(given["index"])
    if int(given["dim"]) % x.dim != x.dim - 1 or found is None or isinstance(low.env[given["index"]], Strided):
        raise refuse(node)
    shape = low.shape(node)
    if not same_all(shape[:-1], x.shape[:-1]):
        raise refuse(node, "of some rows alone")
    out = low.builder.room(shape)
    low.builder.steps.append(GatherStep(x, _indices(low, given["index"], shape), out))
    return out


def masked_fill(low: "Lowering", node: fx.Node) -> Value:
    """Lower what hides scores before a softmax: next to so large a number, what is added to it is lost."""
    given = named(node)
    mask, number = given["mask"], given["value"]
    is_known = not isinstance(low.env[mask], Strided) and value(mask) is not None
    if not is_known or not isinstance(number, int | float) or number > _LOWEST:
        raise refuse(node)
    args = [reference(low.env[mask], low.builder), {"float": "-inf"} if math.isinf(number) else number, 0.0]
    low.builder.calls.append(Call("where.Scalar", args))
    hidden = low.builder.value(len(low.builder.calls) - 1, "float32", shape_of(value(mask)))  # type: ignore[arg-type]
    return low.builder.elementwise("add", low.shape(node), low.tensor(given["self"]), hidden)


def _row(low: "Lowering", indices: Sequence[fx.Node], shape: Sequence[Size]) -> int:
    """Have torch compute which row indices mean, and return the call's index. It is -1 where one is out of range."""

    def call(name: str, *args: Any) -> dict[str, int]:
        low.builder.calls.append(Call(name, list(args)))
        return {"value": len(low.builder.calls) - 1}

    row: Any = None
    is_there: Any = None
    for node, size in zip(indices, shape, strict=False):
        most, least = (found if isinstance(found := written(one), int) else {"size": found} for one in (size, -size))
        place = reference(low.env[node], low.builder)
        fits = call("__and__.Tensor", call("ge.Scalar", place, least), call("lt.Scalar", place, most))
        own = call("remainder.Scalar", place, most)
        row = own if row is None else call("add.Tensor", call("mul.Tensor", row, most), own)
        is_there = fits if is_there is None else call("__and__.Tensor", is_there, fits)
    return int(call("where.ScalarOther", is_there, row, -1)["value"])
