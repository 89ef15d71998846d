"""What stands between the q, k, v matrix and attention, in torch. Source: Su et al., 2021, arXiv:2104.09864.

Shape suffixes: T tokens, C a row's numbers, N heads, H head width, L positions.
"""

import torch
from torch import Tensor

from whet.kernels.rms_norm.reference import rms_norm_reference


def qkv_rope_reference(
    qkv_TC: Tensor,
    num_kv_heads: int,
    head_dim: int,
    positions_T: Tensor,
    cos_LH: Tensor,
    sin_LH: Tensor,
    q_norm_H: Tensor | None,
    k_norm_H: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v [T, heads, H] in the type of the input: normalised head by head, q and k turned by their position.

    cos, sin: [L, H / 2].
    """
    heads_TNH = qkv_TC.unflatten(-1, (-1, head_dim))
    num_heads = heads_TNH.shape[1] - 2 * num_kv_heads
    q_TNH, k_TNH, v_TNH = heads_TNH.split((num_heads, num_kv_heads, num_kv_heads), dim=1)
    if q_norm_H is not None:
        q_TNH = rms_norm_reference(q_TNH, q_norm_H, eps)
    if k_norm_H is not None:
        k_TNH = rms_norm_reference(k_TNH, k_norm_H, eps)
    cos_T1H = cos_LH[positions_T.long(), None].to(qkv_TC.dtype)
    sin_T1H = sin_LH[positions_T.long(), None].to(qkv_TC.dtype)
    return _turn(q_TNH, cos_T1H, sin_T1H), _turn(k_TNH, cos_T1H, sin_T1H), v_TNH


def _turn(x_TNH: Tensor, cos_T1H: Tensor, sin_T1H: Tensor) -> Tensor:
    first, second = x_TNH.chunk(2, dim=-1)
    return torch.cat((first * cos_T1H - second * sin_T1H, second * cos_T1H + first * sin_T1H), dim=-1)
