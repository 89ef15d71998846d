"""What the gated MLP computes, in torch. Source: Shazeer, 2020, arXiv:2002.05202 (SwiGLU).

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
    """[M, N] in the type of the weights, which are those that the kernel sees; activations are rounded as it does."""
    gate_MI = linear_as_packed(x_MK, gate_IK, gate_bias_I, kind)
    up_MI = linear_as_packed(x_MK, up_IK, up_bias_I, kind)
    return linear_as_packed(silu(gate_MI) * up_MI, down_NI, down_bias_N, kind)
