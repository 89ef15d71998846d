"""Compute the gated MLP of the Llama family, down(silu(gate(x)) * up(x)), as the torch operator whet::gated_mlp.

Gate and up are one packed matrix, in which sixteen outputs of gate and the same sixteen of up alternate, so that their
product is computed while both are in registers. Shape suffixes: M rows, K inputs, I intermediate, N outputs, B bytes.
"""

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from whet.errors import InputsError
from whet.kernels.build import Library
from whet.kernels.dispatch import as_floats, as_type, check_floats, kernels_for, pointer
from whet.kernels.gated_mlp.reference import gated_mlp_reference
from whet.kernels.linear import check_weights, dequantise, pack_weights
from whet.kernels.linear.layout import LANES, Kind, interleave
from whet.kernels.linear.packed import PackedWeights, weights_struct


@dataclass(frozen=True)
class PackedMlp:
    """Hold the packed weights of a gated MLP. Both matrices are of one kind."""

    gate_up: PackedWeights
    down: PackedWeights

    @property
    def intermediate(self) -> int:
        """Return the number of intermediate values, I."""
        return self.down.num_inputs


def pack_mlp(
    gate_IK: Tensor,
    up_IK: Tensor,
    down_NI: Tensor,
    kind: Kind,
    gate_bias_I: Tensor | None = None,
    up_bias_I: Tensor | None = None,
    down_bias_N: Tensor | None = None,
) -> PackedMlp:
    """Pack the weights of a gated MLP for the operator. The up projection has a bias if the gate has one.

    Raises:
        InputsError: The matrices do not fit each other.
    """
    if gate_IK.shape != up_IK.shape or down_NI.shape[1] != len(gate_IK) or (gate_bias_I is None) != (up_bias_I is None):
        raise InputsError(
            f"gate {list(gate_IK.shape)}, up {list(up_IK.shape)} and down {list(down_NI.shape)} are no gated MLP: gate "
            "and up have one shape and both a bias or none, and down takes as many inputs as they have outputs"
        )
    biases = None
    if gate_bias_I is not None and up_bias_I is not None:
        biases = interleave(gate_bias_I, up_bias_I)
    gate_up = pack_weights(interleave(gate_IK, up_IK), kind, biases)
    return PackedMlp(gate_up, pack_weights(down_NI, kind, down_bias_N))


def gated_mlp(x: Tensor, weights: PackedMlp) -> Tensor:
    """Compute the gated MLP of x, [..., K] of a floating type: [..., N] of the same type.

    Activations are rounded before each matrix as in whet.kernels.linear.

    Raises:
        InputsError: x does not fit the weights.
    """
    gate_up, down = weights.gate_up, weights.down
    y: Tensor = gated_mlp_operator(
        x, gate_up.data, gate_up.scale, gate_up.bias, down.data, down.scale, down.bias,
        down.kind, weights.intermediate, down.num_outputs,
    )  # fmt: skip
    return y


@torch.library.custom_op("whet::gated_mlp", mutates_args=())
def gated_mlp_operator(
    x: Tensor,
    gate_up_B: Tensor,
    gate_up_scale: Tensor,
    gate_up_bias: Tensor | None,
    down_B: Tensor,
    down_scale: Tensor,
    down_bias: Tensor | None,
    kind: int,
    intermediate: int,
    num_outputs: int,
) -> Tensor:
    """Implement the operator on the tensors of a PackedMlp."""
    weights_kind = Kind(kind)
    both = 2 * (-(-intermediate // LANES) * LANES)
    check_floats(x)
    check_weights(weights_kind, x.shape[-1], gate_up_B, gate_up_scale, gate_up_bias, both)
    check_weights(weights_kind, intermediate, down_B, down_scale, down_bias, num_outputs)
    gate_up = _Matrix(weights_kind, x.shape[-1], both, gate_up_B, gate_up_scale, gate_up_bias)
    down = _Matrix(weights_kind, intermediate, num_outputs, down_B, down_scale, down_bias)
    library = kernels_for(x, gate_up_B, gate_up_scale, gate_up_bias, down_B, down_scale, down_bias)
    floats = as_floats(x)
    return as_type(
        _in_torch(floats, gate_up, down) if library is None else _by_kernel(library, floats, gate_up, down), x
    )


@gated_mlp_operator.register_fake
def _(
    x: Tensor,
    gate_up_B: Tensor,
    gate_up_scale: Tensor,
    gate_up_bias: Tensor | None,
    down_B: Tensor,
    down_scale: Tensor,
    down_bias: Tensor | None,
    kind: int,
    intermediate: int,
    num_outputs: int,
) -> Tensor:
    return x.new_empty((*x.shape[:-1], num_outputs))


@dataclass(frozen=True)
class _Matrix:
    kind: Kind
    num_inputs: int
    num_outputs: int
    data: Tensor
    scale: Tensor
    bias: Tensor | None


def _in_torch(x: Tensor, gate_up: _Matrix, down: _Matrix) -> Tensor:
    def halves(both: Tensor) -> tuple[Tensor, Tensor]:
        parts = both.unflatten(0, (-1, 2, LANES)).transpose(0, 1).flatten(1, 2)[:, : down.num_inputs]
        return parts[0], parts[1]

    def of(matrix: _Matrix) -> Tensor:
        return dequantise(matrix.kind, matrix.data, matrix.scale, matrix.num_outputs, matrix.num_inputs)

    gate_IK, up_IK = halves(of(gate_up))
    gate_bias_I, up_bias_I = (None, None) if gate_up.bias is None else halves(gate_up.bias)
    down_bias_N = None if down.bias is None else down.bias[: down.num_outputs]
    return gated_mlp_reference(x, gate_IK, up_IK, of(down), down.kind, gate_bias_I, up_bias_I, down_bias_N)


def _by_kernel(library: Library, x: Tensor, gate_up: _Matrix, down: _Matrix) -> Tensor:
    functions = library.functions
    structs = [
        ctypes.byref(weights_struct(matrix.kind, matrix.num_inputs, matrix.data, matrix.scale, matrix.bias))
        for matrix in (gate_up, down)
    ]
    K = x.shape[-1]
    M = x.numel() // K
    room = torch.empty(M * functions.whet_gated_mlp_room(*structs), dtype=torch.uint8)
    out = torch.empty((*x.shape[:-1], down.num_outputs))
    functions.whet_gated_mlp(*structs, pointer(x), M, K, down.num_inputs, down.num_outputs, pointer(room), pointer(out))
    return out
