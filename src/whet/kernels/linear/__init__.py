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

from whet.errors import InputsError
from whet.kernels.build import Library
from whet.kernels.dispatch import as_floats, as_type, check_floats, kernels, kernels_for, pointer
from whet.kernels.linear import layout
from whet.kernels.linear.layout import Kind
from whet.kernels.linear.packed import PackedWeights, WeightsStruct, weights_struct
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


def dequantise(kind: Kind, packed_B: Tensor, scale_N: Tensor, num_outputs: int, num_inputs: int) -> Tensor:
    """Return the weights that the kernels multiply with, float32 [N, K]."""
    return layout.unpack(kind, packed_B, num_outputs, num_inputs) * scale_N[:num_outputs, None]


def check_weights(
    kind: Kind, num_inputs: int, packed_B: Tensor, scale_N: Tensor, bias_N: Tensor | None, num_outputs: int
) -> None:
    """Raise InputsError unless tensors are a packed matrix of this kind and size.

    A kernel would read beyond wrong ones.
    """
    wanted = layout.packed_bytes(kind, num_outputs, num_inputs)
    if packed_B.dtype != torch.uint8 or packed_B.numel() != wanted or not packed_B.is_contiguous():
        raise InputsError(
            f"weights of kind {kind.name} with {num_outputs} outputs, for {num_inputs} inputs, are {wanted} bytes in "
            f"uint8; these are {packed_B.numel()} elements in {packed_B.dtype}"
        )
    lanes = layout.num_strips(num_outputs) * layout.LANES
    for name, tensor in (("scale", scale_N), ("bias", bias_N)):
        if tensor is None:
            continue
        if tensor.dtype != torch.float32 or tensor.shape != (lanes,) or not tensor.is_contiguous():
            raise InputsError(
                f"the {name} of packed weights with {num_outputs} outputs is float32 [{lanes}], "
                f"not {tensor.dtype} {list(tensor.shape)}"
            )


def _define(name: str, kind: Kind) -> _Operator:
    def compute(x: Tensor, packed_B: Tensor, scale_N: Tensor, bias_N: Tensor | None, num_outputs: int) -> Tensor:
        check_floats(x)
        check_weights(kind, x.shape[-1], packed_B, scale_N, bias_N, num_outputs)
        library = kernels_for(x, packed_B, scale_N, bias_N)
        if library is None:
            weight_NK = dequantise(kind, packed_B, scale_N, num_outputs, x.shape[-1])
            y = linear_as_packed(as_floats(x), weight_NK, None if bias_N is None else bias_N[:num_outputs], kind)
        else:
            struct = weights_struct(kind, x.shape[-1], packed_B, scale_N, bias_N)
            y = _by_kernel(library, struct, as_floats(x), num_outputs)
        return as_type(y, x)

    operator = torch.library.custom_op(name, compute, mutates_args=())
    operator.register_fake(_shape)
    return operator


def _shape(x: Tensor, packed_B: Tensor, scale_N: Tensor, bias_N: Tensor | None, num_outputs: int) -> Tensor:
    return x.new_empty((*x.shape[:-1], num_outputs))


def _by_kernel(library: Library, weights: WeightsStruct, x: Tensor, num_outputs: int) -> Tensor:
    K = x.shape[-1]
    M = x.numel() // K
    out = torch.empty((*x.shape[:-1], num_outputs))
    stride = layout.row_bytes(Kind(weights.kind), K)
    room = torch.empty(M * (stride + 8), dtype=torch.uint8)  # rows made ready, then their scales and their sums
    rows = room.data_ptr()
    library.functions.whet_linear(
        ctypes.byref(weights),
        pointer(x),
        M,
        K,
        num_outputs,
        ctypes.c_void_p(rows),
        ctypes.c_void_p(rows + M * stride),
        ctypes.c_void_p(rows + M * (stride + 4)),
        pointer(out),
    )
    return out


linear_int8 = _define("whet::linear_int8", Kind.S8)
linear_int4 = _define("whet::linear_int4", Kind.S4)
linear_bf16 = _define("whet::linear_bf16", Kind.BF16)
linear_fp32 = _define("whet::linear_fp32", Kind.F32)
_OPERATORS = {Kind.S8: linear_int8, Kind.S4: linear_int4, Kind.BF16: linear_bf16, Kind.F32: linear_fp32}
