"""Compute the gated MLP in torch, as the reference. Source: Shazeer, 2020, arXiv:2002.05202 (SwiGLU).

Suffixes: M rows, K inputs, I intermediate, N outputs.
"""

from torch import Tensor
from torch.nn.functional import silu

from whet.kernels.linear.layout import Kind
from whet.kernels.linear.reference import linear_as_packed


def gated_mlp_reference(
    x_MK: Tensor,
    gate_IK: Tensor,
    up_IK: Tensor,
    down_NI: Tensor,
    kind: Kind,
    gate_bias_I: Tensor | None = None,
    up_bias_I: Tensor | None = None,
    down_bias_N: Tensor | None = None,
) -> Tensor:
    """Return [M, N] in the type of the weights. The weights are the kernel's, and activations are rounded as there."""
    gate_MI = linear_as_packed(x_MK, gate_IK, gate_bias_I, kind)
    up_MI = linear_as_packed(x_MK, up_IK, up_bias_I, kind)
    return linear_as_packed(silu(gate_MI) * up_MI, down_NI, down_bias_N, kind)
