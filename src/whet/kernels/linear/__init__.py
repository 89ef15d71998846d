"""Compute linear layers over packed weights, y = x W^T + b, as torch operators.

    whet::linear_int8   int8 weights with a scale an output
    whet::linear_int4   int4 weights with a scale an output and a whole number 1..15 for every 32 inputs
    whet::linear_bf16   bf16 weights, sums in float32
    whet::linear_fp32   float32 weights

Shape suffixes: M rows, N outputs, K inputs, B bytes.
"""

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

from whet.kernels.build import Library
from whet.kernels.dispatch import as_floats, as_type, check_floats, kernels, kernels_for, pointer
from whet.kernels.linear.layout import Kind
from whet.kernels.linear.packed import PackedMatrix, PackedWeights
from whet.kernels.linear.reference import linear_as_packed

_Operator = Callable[[Tensor, Tensor, Tensor, Tensor | None, int], Tensor]


def pack_weights(weight_NK: Tensor, kind: Kind, bias_N: Tensor | None = None) -> PackedWeights:
    """Pack weights for the operators. S8 and S4 round to the nearest level."""
    return PackedWeights(kernels(), kind, weight_NK, bias_N)


def linear(x: Tensor, weights: PackedWeights) -> Tensor:
    """Compute a linear layer with the operator for the kind of its weights.

    x is [..., K] of a floating type, and the output [..., N] of the same type. Activations become int8
    with one scale per row for S8 and S4, and bf16 for BF16. A row's result is the same, bit for bit,
    whatever other rows the call has.

    Raises:
        InputsError: x does not fit the weights.
    """
    return _OPERATORS[weights.kind](x, weights.data, weights.scale, weights.bias, weights.num_outputs)


def _define(name: str, kind: Kind) -> _Operator:
    def compute(x: Tensor, packed_B: Tensor, scale_N: Tensor, bias_N: Tensor | None, num_outputs: int) -> Tensor:
        check_floats(x)
        matrix = PackedMatrix(kind, num_outputs, x.shape[-1], packed_B, scale_N, bias_N)
        matrix.check()
        library = kernels_for(x, packed_B, scale_N, bias_N)
        if library is not None:
            return as_type(_by_kernel(library, matrix, as_floats(x)), x)
        bias = None if bias_N is None else bias_N[:num_outputs]
        return as_type(linear_as_packed(as_floats(x), matrix.dequantised(), bias, kind), x)

    operator = torch.library.custom_op(name, compute, mutates_args=())
    operator.register_fake(_shape)
    return operator


def _shape(x: Tensor, packed_B: Tensor, scale_N: Tensor, bias_N: Tensor | None, num_outputs: int) -> Tensor:
    return x.new_empty((*x.shape[:-1], num_outputs))


def _by_kernel(library: Library, weights: PackedMatrix, x: Tensor) -> Tensor:
    K, N, stride = weights.num_inputs, weights.num_outputs, weights.row_bytes()
    M = x.numel() // K
    out = torch.empty((*x.shape[:-1], N))
    room = torch.empty(M * (stride + 8), dtype=torch.uint8)  # rows made ready, then their scales and their sums
    rows = room.data_ptr()
    ready = (rows, rows + M * stride, rows + M * (stride + 4))
    library.functions.whet_linear(ctypes.byref(weights.struct), pointer(x), M, K, N, *ready, pointer(out))
    return out


linear_int8 = _define("whet::linear_int8", Kind.S8)
linear_int4 = _define("whet::linear_int4", Kind.S4)
linear_bf16 = _define("whet::linear_bf16", Kind.BF16)
linear_fp32 = _define("whet::linear_fp32", Kind.F32)
_OPERATORS = {Kind.S8: linear_int8, Kind.S4: linear_int4, Kind.BF16: linear_bf16, Kind.F32: linear_fp32}
