"""Describe operations on numbers in memory, which a plan runs one after the other.

Numbers are float32 unless an operation says otherwise. No operation's output may overlap its inputs, but for what its
docstring allows. Where an operation takes rows, all dimensions but the last count them.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import torch
from torch import Tensor

from whet.kernels.linear.packed import PackedMatrix


@dataclass(frozen=True)
class View:
    """Describe numbers in memory: the address of the first, their shape, and strides in numbers; 0 repeats them."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype = torch.float32

    @classmethod
    def of(cls, tensor: Tensor) -> "View":
        """Return the view of a tensor, which must outlive it."""
        return cls(tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)


class Activation(IntEnum):
    """Name an activation function. The numbers are those of activations.h."""

    NONE = 0
    RELU = 1
    GELU = 2  # by erf
    GELU_TANH = 3
    SILU = 4
    QUICK_GELU = 5  # x sigmoid(1.702 x)
    TANH = 6
    SIGMOID = 7


@dataclass(frozen=True)
class Norm:
    """Describe a norm over the last dimension; weight and bias are contiguous. With is_rms, no mean is subtracted."""

    weight: View | None
    bias: View | None
    eps: float
    is_rms: bool


@dataclass(frozen=True)
class Linear:
    """Compute out [rows, n] = activation(norm(x) W^T + bias) + residual of x [rows, k]. Residual may be out itself."""

    x: View
    weights: PackedMatrix
    out: View
    activation: Activation = Activation.NONE
    norm: Norm | None = None
    residual: View | None = None


@dataclass(frozen=True)
class Gated:
    """Compute out [rows, n] = activation(gate) * up, where gate and up are linear layers of norm(x).

    Their weights are one matrix, as whet.kernels.linear.layout.interleave makes it.
    """

    x: View
    weights: PackedMatrix
    out: View
    activation: Activation
    norm: Norm | None = None


@dataclass(frozen=True)
class Normalise:
    """Compute total = x + other, where there is another, and out = norm(total). Total may be x or other."""

    x: View
    norm: Norm
    out: View
    other: View | None = None
    total: View | None = None


@dataclass(frozen=True)
class Embed:
    """Compute out [rows, width] = the sum of one row of each table [num, width], float32 or bfloat16.

    Indices are int64 [rows]. One that lies outside its table is an error.
    """

    tables: tuple[View, ...]
    indices: tuple[View, ...]
    out: View


@dataclass(frozen=True)
class Gather:
    """Compute out [..., n] = the numbers of each row of x [..., width] that int64 indices [..., n] name.

    Indices are broadcast to out. One that lies outside its row is an error.
    """

    x: View
    indices: View
    out: View


@dataclass(frozen=True)
class Attend:
    """Compute out = softmax(scale q k^T + mask) v of each batch and head.

    Attributes:
        q: [B, H, T, D]; head h takes the key-value head h // (H / Hk).
        k: [B, Hk, S, D].
        v: [B, Hk, S, Dv].
        out: [B, H, T, Dv].
        is_causal: Row i sees the keys 0..i, as in torch.
        mask: Broadcast to [B, H, T, S]; bool (True is seen) or float32 (added). What sees nothing becomes 0.
        is_bf16: Products round their inputs to bfloat16.
    """

    q: View
    k: View
    v: View
    out: View
    scale: float
    is_causal: bool = False
    mask: View | None = None
    is_bf16: bool = False


@dataclass(frozen=True)
class Multiply:
    """Compute out [..., m, n] = a [..., m, k] b [..., k, n]. Batches, at most 4, are broadcast to those of out."""

    a: View
    b: View
    out: View


@dataclass(frozen=True)
class Softmax:
    """Compute out = softmax over the last dimension; out may be x."""

    x: View
    out: View


@dataclass(frozen=True)
class Reduce:
    """Compute out [rows] = the sum, mean or maximum of each row of x [rows, width]."""

    x: View
    out: View
    kind: Literal["sum", "mean", "max"]


FUNCTIONS = (
    "add", "sub", "mul", "div", "max", "min", "pow", "lt", "le", "eq", "ne",
    "neg", "abs", "exp", "log", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "erf", "round", "floor",
    "relu", "gelu", "gelu_tanh", "silu", "quick_gelu", "tanh", "sigmoid",
)  # fmt: skip
"""The functions of Elementwise, in the order of elementwise.h; those in the first line take two numbers."""


@dataclass(frozen=True)
class Elementwise:
    """Run a small program for each number of out.

    Attributes:
        inputs: Broadcast to the shape of out, in any type; their numbers become float32. One may be out itself.
        code: Steps (function, i, j) of FUNCTIONS. Values are the inputs, then the results of the steps in order, and
            i and j are their indices; functions of one number take value i. The last result is kept, or without
            steps the first input.
    """

    inputs: tuple[View, ...]
    code: tuple[tuple[str, int, int], ...]
    out: View


@dataclass(frozen=True)
class Copy:
    """Copy x to out, of one shape and one type, which may be any."""

    x: View
    out: View


@dataclass(frozen=True)
class Fill:
    """Write a number everywhere, in the type of out."""

    out: View
    value: float


Operation = (
    Linear | Gated | Normalise | Embed | Gather | Attend | Multiply | Softmax | Reduce | Elementwise | Copy | Fill
)  # fmt: skip


@dataclass(frozen=True)
class OfRows:
    """Do an operation on the rows of a batch [B, L] that a call works on, or on the others alone.

    Of Attend, "seen" leaves out queries and keys: the others' keys and values are not read, and count as zeros.

    Attributes:
        operation: No Multiply. Its views begin with B and L, but for those of Attend; inputs of Elementwise have the
            shape of out.
        of: "hidden" are the rows that a call leaves out: none, if it names no rows.
    """

    operation: Operation
    of: Literal["seen", "hidden"]
