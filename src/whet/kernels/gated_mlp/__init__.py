"""Compute the gated MLP of the Llama family, down(silu(gate(x)) * up(x)), as the torch operator whet::gated_mlp.

Gate and up are one packed matrix, in which sixteen outputs of gate and the same sixteen of up alternate, so that their
product is computed while both are in registers. Shape suffixes: M rows, K inputs, I intermediate, N outputs, B bytes.
"""

import ctypes
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from whet.errors import InputsError
from whet.kernels.build import Library
from whet.kernels.dispatch import as_floats, as_type, check_floats, kernels_for, pointer
from whet.kernels.gated_mlp.reference import gated_mlp_reference
from whet.kernels.linear import pack_weights
from whet.kernels.linear.layout import LANES, Kind, interleave
from whet.kernels.linear.packed import PackedMatrix


@dataclass(frozen=True)
class PackedMlp:
    """Hold the packed weights of a gated MLP. Both matrices are of one kind."""

    gate_up: PackedMatrix
    down: PackedMatrix

    @property
    def intermediate(self) -> int:
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
    check_floats(x)
    both = 2 * (-(-intermediate // LANES) * LANES)
    gate_up = PackedMatrix(Kind(kind), both, x.shape[-1], gate_up_B, gate_up_scale, gate_up_bias)
    down = PackedMatrix(Kind(kind), num_outputs, intermediate, down_B, down_scale, down_bias)
    gate_up.check()
    down.check()
    library = kernels_for(x, gate_up_B, gate_up_scale, gate_up_bias, down_B, down_scale, down_bias)
    compute = _in_torch if library is None else partial(_by_kernel, library)
    return as_type(compute(as_floats(x), gate_up, down), x)


@gated_mlp_operator.register_fake
def _(x: Tensor, *others: Any) -> Tensor:
    return x.new_empty((*x.shape[:-1], others[-1]))


def _in_torch(x: Tensor, gate_up: PackedMatrix, down: PackedMatrix) -> Tensor:
    def halves(both: Tensor) -> tuple[Tensor, Tensor]:
        parts = both.unflatten(0, (-1, 2, LANES)).transpose(0, 1).flatten(1, 2)[:, : down.num_inputs]
        return parts[0], parts[1]

    gate_IK, up_IK = halves(gate_up.dequantised())
    gate_bias_I, up_bias_I = (None, None) if gate_up.bias is None else halves(gate_up.bias)
    down_bias_N = None if down.bias is None else down.bias[: down.num_outputs]
    return gated_mlp_reference(x, gate_IK, up_IK, down.dequantised(), down.kind, gate_bias_I, up_bias_I, down_bias_N)


def _by_kernel(library: Library, x: Tensor, gate_up: PackedMatrix, down: PackedMatrix) -> Tensor:
    functions, K = library.functions, gate_up.num_inputs
    structs = (ctypes.byref(gate_up.struct), ctypes.byref(down.struct))
    M = x.numel() // K
    room = torch.empty(M * functions.whet_gated_mlp_room(*structs), dtype=torch.uint8)
    out = torch.empty((*x.shape[:-1], down.num_outputs))
    functions.whet_gated_mlp(*structs, pointer(x), M, K, down.num_inputs, down.num_outputs, pointer(room), pointer(out))
    return out
