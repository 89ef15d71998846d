"""Operations of whet.kernels.graph in torch, in place of a plan: what tells a wrong program from a wrong kernel."""

import ctypes
import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from whet.kernels.graph.operations import (
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
from whet.kernels.linear.layout import LANES, Kind
from whet.kernels.linear.reference import quantise_rows

ACTIVATIONS = {
    Activation.NONE: lambda x: x,
    Activation.RELU: torch.relu,
    Activation.GELU: functional.gelu,
    Activation.GELU_TANH: lambda x: functional.gelu(x, approximate="tanh"),
    Activation.SILU: functional.silu,
    Activation.QUICK_GELU: lambda x: x * torch.sigmoid(1.702 * x),
    Activation.TANH: torch.tanh,
    Activation.SIGMOID: torch.sigmoid,
}
FUNCTIONS: dict[str, Any] = {
    **{name: getattr(torch, name) for name in ("add", "sub", "mul", "div", "pow", "lt", "le", "eq", "ne")},
    "max": torch.maximum,
    "min": torch.minimum,
    **{name: getattr(torch, name) for name in ("neg", "abs", "exp", "log", "sqrt", "rsqrt", "reciprocal", "sin")},
    **{name: getattr(torch, name) for name in ("cos", "erf", "round", "floor")},
    **{one.name.lower(): function for one, function in ACTIVATIONS.items()},
}
BINARY = ("add", "sub", "mul", "div", "max", "min", "pow", "lt", "le", "eq", "ne")


class InterpretedPlan:
    """Run operations one by one, in float64 but for what a linear layer of int8 or bf16 rounds.

    Rows that a call leaves out become NaN, so that nothing can depend on them unnoticed.
    """

    def __init__(self, operations: Sequence[Operation | OfRows], keep: Sequence[object] = ()) -> None:
        self.operations, self.keep = operations, keep

    def run(self, seen: SeenRows | None = None) -> None:
        for operation in self.operations:
            if not isinstance(operation, OfRows):
                _RUN[type(operation)](operation)
            elif seen is not None:
                of_rows(operation, torch.from_numpy(seen.is_seen))
            elif operation.of == "seen":
                _RUN[type(operation.operation)](operation.operation)


def of_rows(rows: OfRows, is_seen: Tensor) -> None:
    op = rows.operation
    outs = [out for name in ("out", "total") if (out := getattr(op, name, None)) is not None]
    before = [tensor(out).clone() for out in outs]
    if isinstance(op, Attend):
        is_seen = is_seen[:, None]
        keys = [torch.where(is_seen[..., None], tensor(x), 0.0) for x in (op.k, op.v)]
        op = dataclasses.replace(op, k=View.of(keys[0]), v=View.of(keys[1]))
    _RUN[type(op)](op)
    for out, old in zip(outs, before, strict=True):
        chosen = is_seen if rows.of == "seen" else ~is_seen
        chosen = chosen.reshape(*chosen.shape, *[1] * (old.dim() - chosen.dim()))
        tensor(out).copy_(torch.where(chosen, tensor(out), torch.nan if rows.of == "seen" else old))


def tensor(view: View) -> Tensor:
    """The numbers of a view, in place."""
    if 0 in view.shape:
        return torch.empty(view.shape, dtype=view.dtype)
    size = 1 + sum((size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True))
    memory = (ctypes.c_uint8 * (size * view.dtype.itemsize)).from_address(view.address)
    return torch.frombuffer(memory, dtype=view.dtype).as_strided(view.shape, view.strides)


def exact(view: View) -> Tensor:
    found = tensor(view)
    return found.double() if found.is_floating_point() else found


def write(view: View, found: Tensor) -> None:
    assert found.shape == view.shape
    tensor(view).copy_(found)


def normalised(x: Tensor, norm: Norm | None) -> Tensor:
    if norm is None:
        return x
    weight, bias = (None if view is None else exact(view) for view in (norm.weight, norm.bias))
    if norm.is_rms:
        y = functional.rms_norm(x, x.shape[-1:], weight, norm.eps)
        return y if bias is None else y + bias
    return functional.layer_norm(x, x.shape[-1:], weight, bias, norm.eps)


def product(op: Linear | Gated) -> Tensor:
    weights = op.weights
    x = normalised(exact(op.x), op.norm)
    if weights.kind is Kind.BF16:
        x = x.float().bfloat16().double()
    elif weights.kind is Kind.S8:
        x = quantise_rows(x.float()).double()
    y = x @ weights.dequantised().double().T
    return y if weights.bias is None else y + weights.bias[: weights.num_outputs]


def linear(op: Linear) -> None:
    y = ACTIVATIONS[op.activation](product(op))
    write(op.out, y if op.residual is None else y + exact(op.residual))


def gated(op: Gated) -> None:
    gate, up = product(op).unflatten(-1, (-1, 2, LANES)).unbind(-2)
    write(op.out, (ACTIVATIONS[op.activation](gate) * up).flatten(-2)[..., : op.out.shape[-1]])


def normalise(op: Normalise) -> None:
    total = exact(op.x) if op.other is None else exact(op.x) + exact(op.other)
    if op.total is not None:
        write(op.total, total)
    write(op.out, normalised(total, op.norm))


def embed(op: Embed) -> None:
    rows = [exact(table)[tensor(indices)] for table, indices in zip(op.tables, op.indices, strict=True)]
    write(op.out, torch.stack(rows).sum(0))


def attend(op: Attend) -> None:
    q, k, v = exact(op.q), exact(op.k), exact(op.v)
    group = q.shape[1] // k.shape[1]
    scores = op.scale * q @ k.repeat_interleave(group, 1).mT
    if op.mask is not None:
        mask = exact(op.mask)
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else scores + mask
    if op.is_causal:
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -torch.inf)
    write(op.out, scores.softmax(-1).nan_to_num(0.0) @ v.repeat_interleave(group, 1))


def reduce(op: Reduce) -> None:
    x = exact(op.x)
    write(op.out, {"sum": x.sum(-1), "mean": x.mean(-1), "max": x.amax(-1)}[op.kind])


def elementwise(op: Elementwise) -> None:
    values = [tensor(view).double() for view in op.inputs]
    for name, i, j in op.code:
        arguments = (values[i], values[j]) if name in BINARY else (values[i],)
        values.append(FUNCTIONS[name](*arguments).double())
    write(op.out, (values[-1] if op.code else values[0]).expand(op.out.shape))


_RUN: dict[type[Any], Any] = {
    Linear: linear,
    Gated: gated,
    Normalise: normalise,
    Embed: embed,
    Gather: lambda op: write(op.out, exact(op.x).gather(-1, tensor(op.indices).expand(op.out.shape))),
    Attend: attend,
    Multiply: lambda op: write(op.out, exact(op.a) @ exact(op.b)),
    Softmax: lambda op: write(op.out, exact(op.x).softmax(-1)),
    Reduce: reduce,
    Elementwise: elementwise,
    Copy: lambda op: write(op.out, tensor(op.x)),
    Fill: lambda op: tensor(op.out).fill_(op.value),
}
