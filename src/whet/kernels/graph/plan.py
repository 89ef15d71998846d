"""Run operations one after the other as one call, on all threads of the kernels' pool."""

import ctypes
import dataclasses
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from whet.errors import InputsError, MachineError
from whet.kernels import dispatch
from whet.kernels.build import library
from whet.kernels.graph.operations import (
    FUNCTIONS,
    Activation,
    Attend,
    Copy,
    Elementwise,
    Embed,
    Fill,
    Gated,
    Gather,
    Linear,
    Multiply,
    Norm,
    Normalise,
    OfRows,
    Operation,
    Reduce,
    Softmax,
    View,
)
from whet.kernels.graph.seen import SeenRows
from whet.kernels.graph.structs import (
    TYPES,
    AttendStruct,
    CopyStruct,
    ElementwiseStruct,
    EmbedStruct,
    FillStruct,
    GatherStruct,
    LinearStruct,
    MultiplyStruct,
    Name,
    NormaliseStruct,
    NormStruct,
    OperationStruct,
    ReduceStruct,
    SoftmaxStruct,
    StepStruct,
    ViewStruct,
)
from whet.kernels.graph.views import check, expanded, joined, rows_struct, struct_of
from whet.kernels.linear.layout import LANES
from whet.kernels.linear.packed import PackedMatrix

_KINDS = ("sum", "mean", "max")
_NUM_BINARY = FUNCTIONS.index("neg")
_OF = ("all", "seen", "hidden")  # as seen.h numbers them
_BATCH_DIMS = 2
_NO_MEMORY = -2


class Plan:
    """Run operations in order, each from the results of those before it. Numbers are read and written in place.

    One call at a time: who shares the memory that a plan works in must wait for its end. Rows of the same numbers
    give the same results, bit for bit, whatever rows they are with and on any number of threads; in attention, a row
    also depends on its own sequence.
    """

    def __init__(self, operations: Sequence[Operation | OfRows], keep: Sequence[object] = ()) -> None:
        """Check operations, and make them ready.

        Args:
            operations: Their memory must live as long as the plan, as `keep` may see to.
            keep: What the plan holds on to.

        Raises:
            KernelsError: There are no compiled kernels.
            InputsError: Shapes, types or strides of an operation do not fit.
            MachineError: There is not enough memory.
        """
        operations = [operation for operation in operations if math.prod(_plain(operation).out.shape)]
        self._batch = _batch_of(operations)
        plain = [_plain(operation) for operation in operations]
        self._tables = {i: _table(one) for i, one in enumerate(plain) if isinstance(one, Embed | Gather)}
        self._keep = [*keep, *(one.weights for one in plain if isinstance(one, Linear | Gated))]
        self._functions = (dispatch.kernels() or library()).functions
        self._structs = [_struct_of(i, operation) for i, operation in enumerate(operations)]
        named = (OperationStruct * len(self._structs))(*map(_named, operations, self._structs))
        self._handle = self._functions.whet_graph_new(named, len(named))
        if not self._handle:
            raise MachineError("there is no memory for a plan; take fewer rows")
        weakref.finalize(self, self._functions.whet_graph_free, self._handle)

    def run(self, seen: SeenRows | None = None) -> None:
        """Run all operations.

        Args:
            seen: The rows that operations of some rows work on; by default all.

        Raises:
            InputsError: An index lies outside the table that it is for. What was computed is not valid.
            MachineError: There is not enough memory.
        """
        if seen is not None and self._batch not in (None, seen.is_seen.shape):
            raise InputsError(f"rows {list(seen.is_seen.shape)} are named of a batch {list(self._batch or ())}")
        failed = self._functions.whet_graph_run(self._handle, None if seen is None else ctypes.addressof(seen.struct))
        if failed == _NO_MEMORY:
            raise MachineError("there is no memory for the rows of the plan's widest linear layer; take fewer rows")
        if failed >= 0:
            raise InputsError(f"an index lies outside {self._tables[failed]}; check the ids of the inputs")


def _table(operation: Embed | Gather) -> str:
    """Return what an index of an operation is looked up in."""
    if isinstance(operation, Gather):
        return f"a row of {operation.x.shape[-1]} numbers"
    return f"an embedding of {' and '.join(str(table.shape[0]) for table in operation.tables)} rows"


def _plain(operation: Operation | OfRows) -> Operation:
    return operation.operation if isinstance(operation, OfRows) else operation


def _batch_of(operations: Sequence[Operation | OfRows]) -> tuple[int, int] | None:
    """Return the batch and the length of the operations of some rows, or None where there are none."""
    found: tuple[int, int] | None = None
    for operation in operations:
        if isinstance(operation, OfRows):
            inner = operation.operation
            shape = inner.out.shape[::2] if isinstance(inner, Attend) else inner.out.shape
            if len(shape) < 2 or isinstance(inner, Multiply) or found not in (None, shape[:2]):
                raise InputsError(f"{type(inner).__name__} {list(inner.out.shape)} has no rows of a batch of {found}")
            found = shape[0], shape[1]
    return found


def _struct_of(index: int, operation: Operation | OfRows) -> ctypes.Structure:
    inner = _plain(operation)
    is_apart = isinstance(operation, OfRows) and isinstance(inner, Elementwise | Copy | Fill)
    try:
        return _CONVERTERS[type(inner)](inner, *([_BATCH_DIMS] if is_apart else []))
    except InputsError as error:
        raise InputsError(f"operation {index}, {type(inner).__name__}: {error}") from error


def _named(operation: Operation | OfRows, struct: ctypes.Structure) -> OperationStruct:
    of, each = "all", 1
    if isinstance(operation, OfRows):
        num_rows = math.prod(operation.operation.out.shape[:_BATCH_DIMS])
        of, each = operation.of, math.prod(struct.out.shape[:-1]) // num_rows
    return OperationStruct(_name_of(struct), _OF.index(of), each, ctypes.addressof(struct))


def _name_of(struct: ctypes.Structure) -> Name:
    return Name[type(struct).__name__.removesuffix("Struct").upper()]


def _not_empty(name: str, view: View) -> None:
    if not math.prod(view.shape):
        raise InputsError(f"{name} {list(view.shape)} is empty")


def _norm(norm: Norm | None, width: int) -> NormStruct:
    if norm is None:
        return NormStruct()
    for name, view in (("the norm's weight", norm.weight), ("the norm's bias", norm.bias)):
        if view is not None:
            check(name, view, (width,))
            if width > 1 and view.strides != (1,):
                raise InputsError(f"{name} is not contiguous")
    weight, bias = (None if view is None else view.address for view in (norm.weight, norm.bias))
    return NormStruct(weight, bias, norm.eps, norm.is_rms)


def _layer(
    op: Linear | Gated, num_outputs: int, activation: Activation, residual: View | None, *, is_gated: bool
) -> LinearStruct:
    weights: PackedMatrix = op.weights
    weights.check()
    _not_empty("x", op.x)
    rows = op.x.shape[:-1]
    check("x", op.x, (*rows, weights.num_inputs))
    check("out", op.out, (*op.out.shape[:-1], num_outputs))
    if math.prod(rows) != math.prod(op.out.shape[:-1]):
        raise InputsError(f"x has the shape {list(op.x.shape)}, and out {list(op.out.shape)}")
    if residual is not None:
        check("residual", residual, op.out.shape)
    return LinearStruct(
        rows_struct("x", op.x),
        rows_struct("out", op.out),
        rows_struct("residual", residual),
        weights.struct,
        _norm(op.norm, weights.num_inputs),
        op.norm is not None,
        is_gated,
        activation,
    )


def _linear(op: Linear) -> LinearStruct:
    return _layer(op, op.weights.num_outputs, op.activation, op.residual, is_gated=False)


def _gated(op: Gated) -> LinearStruct:
    both, width = op.weights.num_outputs, op.out.shape[-1]
    if both != 2 * (-(-width // LANES) * LANES):
        raise InputsError(f"out has {width} columns, and a matrix of {both} outputs, interleaved, gives {both // 2}")
    return _layer(op, width, op.activation, None, is_gated=True)


def _normalise(op: Normalise) -> NormaliseStruct:
    views = {"x": op.x, "other": op.other, "total": op.total, "out": op.out}
    for name, view in views.items():
        if view is not None:
            check(name, view, op.x.shape)
    if op.total is not None and op.other is None:
        raise InputsError("there is no other whose total with x could be kept")
    return NormaliseStruct(*(rows_struct(name, view) for name, view in views.items()), _norm(op.norm, op.x.shape[-1]))


def _embed(op: Embed) -> EmbedStruct:
    if not op.tables or len(op.tables) != len(op.indices):
        raise InputsError(f"there are {len(op.tables)} tables and {len(op.indices)} indices")
    *rows, width = op.out.shape
    for table, indices in zip(op.tables, op.indices, strict=True):
        check("a table", table, (table.shape[0], width), (torch.float32, torch.bfloat16))
        check("indices", indices, rows, (torch.int64,))
    tables = (ViewStruct * len(op.tables))(*map(struct_of, op.tables))
    indices_of = (ViewStruct * len(op.tables))(*(struct_of(_columns(view)) for view in op.indices))
    return EmbedStruct(len(op.tables), tables, indices_of, rows_struct("out", op.out))


def _gather(op: Gather) -> GatherStruct:
    *rows, num = op.out.shape
    _not_empty("x", op.x)
    check("out", op.out)
    check("x", op.x, (*rows, op.x.shape[-1]))
    check("indices", op.indices, None, (torch.int64,))
    indices = expanded("indices", op.indices, op.out.shape)
    views = [dataclasses.replace(view, shape=(*rows, num)) for view in (op.x, indices, op.out)]
    x, *others = joined(views, num_kept=1)
    x = dataclasses.replace(x, shape=(*x.shape[:-1], op.x.shape[-1]))
    return GatherStruct(*map(struct_of, (x, *others)))


def _columns(view: View) -> View:
    """Return each number as a row of its own."""
    (rows,) = joined([view])
    return dataclasses.replace(rows, shape=(*rows.shape, 1), strides=(*rows.strides, 1))


def _attend(op: Attend) -> AttendStruct:
    if len(op.q.shape) != 4 or len(op.k.shape) != 4 or len(op.v.shape) != 4:
        raise InputsError("q, k and v are [batch, heads, length, width]")
    B, H, T, D = op.q.shape
    Hk, S = op.k.shape[1:3]
    if not Hk or H % Hk:
        raise InputsError(f"{H} heads cannot share {Hk} heads of keys evenly")
    check("q", op.q)
    check("k", op.k, (B, Hk, S, D))
    check("v", op.v, (B, Hk, S, op.v.shape[3]))
    check("out", op.out, (B, H, T, op.v.shape[3]))
    mask = op.mask
    if mask is not None:
        check("mask", mask, None, (torch.bool, torch.float32))
        mask = expanded("mask", mask, (B, H, T, S))
    return AttendStruct(*map(struct_of, (op.q, op.k, op.v, op.out, mask)), op.scale, op.is_causal, op.is_bf16)


def _multiply(op: Multiply) -> MultiplyStruct:
    *batches, m, n = op.out.shape
    k = op.a.shape[-1]
    _not_empty("a", op.a)
    for name, view, rows, columns in (("a", op.a, m, k), ("b", op.b, k, n)):
        check(name, view, (*view.shape[:-2], rows, columns))
    check("out", op.out)
    a, b = expanded("a", op.a, (*batches, m, k)), expanded("b", op.b, (*batches, k, n))
    return MultiplyStruct(*map(struct_of, (a, b, op.out)))


def _softmax(op: Softmax) -> SoftmaxStruct:
    check("out", op.out, op.x.shape)
    return SoftmaxStruct(rows_struct("x", op.x), rows_struct("out", op.out))


def _reduce(op: Reduce) -> ReduceStruct:
    _not_empty("x", op.x)
    check("x", op.x)
    check("out", op.out, op.x.shape[:-1])
    (x,) = joined([op.x], num_kept=1)
    return ReduceStruct(struct_of(x), struct_of(_columns(op.out)), _KINDS.index(op.kind))


def _elementwise(op: Elementwise, num_first: int = 0) -> ElementwiseStruct:
    check("out", op.out)
    if not op.inputs:
        raise InputsError("there is no input")
    views = []
    for view in op.inputs:
        check("an input", view, None, tuple(TYPES))
        views.append(expanded("an input", view, op.out.shape))
    for number, (name, i, j) in enumerate(op.code):
        if name not in FUNCTIONS:
            raise InputsError(f"there is no function {name}; there are {', '.join(FUNCTIONS)}")
        used = (i, j) if FUNCTIONS.index(name) < _NUM_BINARY else (i,)
        if not 0 <= min(used) <= max(used) < len(views) + number:
            raise InputsError(f"step {number} ({name}) takes a value that is not there yet")
    *inputs, out = joined([*views, op.out], num_first=num_first)
    steps = (StepStruct * len(op.code))(*(_step(*step) for step in op.code))
    inputs_of = (ViewStruct * len(inputs))(*map(struct_of, inputs))
    return ElementwiseStruct(len(inputs), len(steps), inputs_of, steps, struct_of(out))


def _step(name: str, i: int, j: int) -> StepStruct:
    function = FUNCTIONS.index(name)
    return StepStruct(function, i, j if function < _NUM_BINARY else i)


def _copy(op: Copy, num_first: int = 0) -> CopyStruct:
    check("out", op.out, op.x.shape, tuple(TYPES))
    check("x", op.x, op.x.shape, (op.out.dtype,))
    return CopyStruct(*map(struct_of, joined([op.x, op.out], num_first=num_first)), op.out.dtype.itemsize)


def _fill(op: Fill, num_first: int = 0) -> FillStruct:
    check("out", op.out, None, tuple(TYPES))
    return FillStruct(struct_of(joined([op.out], num_first=num_first)[0]), op.value)


_CONVERTERS: dict[type[Any], Callable[..., ctypes.Structure]] = {
    Linear: _linear,
    Gated: _gated,
    Normalise: _normalise,
    Embed: _embed,
    Gather: _gather,
    Attend: _attend,
    Multiply: _multiply,
    Softmax: _softmax,
    Reduce: _reduce,
    Elementwise: _elementwise,
    Copy: _copy,
    Fill: _fill,
}
