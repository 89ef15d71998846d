"""What stands between the q, k, v matrix and attention, as one torch operator that works in place.

    whet::qkv_rope   norm of each head of q and k (Qwen3), rotary positions, keys and values into the cache

Shape suffixes: T tokens, S sequences, C a row's numbers: (query heads + 2 key-value heads) x H, H head width,
L positions.
"""

import ctypes

import torch
from torch import Tensor

from whet.errors import InputsError
from whet.kernels.build import Library
from whet.kernels.decoder.structs import RopeStruct
from whet.kernels.dispatch import kernels_for, pointer
from whet.kernels.paged_attention import check_row
from whet.kernels.paged_attention.cache import Batch, KvCache, check_batch
from whet.kernels.paged_attention.native import cache_struct, heads_struct, ragged_struct
from whet.kernels.qkv_rope.reference import qkv_rope_reference


def write_qkv(
    qkv_TC: Tensor,
    cache: KvCache,
    batch: Batch,
    cos_LH: Tensor,
    sin_LH: Tensor,
    q_norm_H: Tensor | None = None,
    k_norm_H: Tensor | None = None,
    eps: float = 1e-6,
) -> None:
    """Turn q and k of float32 rows in place, and put k and v into the cache; norms come before where they are given.

    cos, sin: float32 [L, H / 2], multiplied by the rotary scale already. Raises InputsError where sizes do not fit.
    """
    tensors = (cache.keys, cache.values, cache.key_scales, cache.value_scales)
    qkv_rope(qkv_TC, *tensors, *batch, cos_LH, sin_LH, q_norm_H, k_norm_H, eps)


@torch.library.custom_op("whet::qkv_rope", mutates_args=("qkv_TC", "keys", "values", "key_scales", "value_scales"))
def qkv_rope(
    qkv_TC: Tensor,
    keys: Tensor,
    values: Tensor,
    key_scales: Tensor | None,
    value_scales: Tensor | None,
    positions_T: Tensor,
    query_start: Tensor,
    context_len_S: Tensor,
    block_tables: Tensor,
    cos_LH: Tensor,
    sin_LH: Tensor,
    q_norm_H: Tensor | None,
    k_norm_H: Tensor | None,
    eps: float,
) -> None:
    """`write_qkv`, as torch calls it."""
    cache, batch = (
        KvCache(keys, values, key_scales, value_scales),
        Batch(positions_T, query_start, context_len_S, block_tables),
    )
    cache.check()
    check_row(qkv_TC, cache)
    check_batch(cache, batch, len(qkv_TC))
    _check_floats(qkv_TC, cache.head_dim, batch, cos_LH, sin_LH, q_norm_H, k_norm_H)
    library = kernels_for(qkv_TC, keys, values, key_scales, value_scales, *batch, cos_LH, sin_LH, q_norm_H, k_norm_H)
    if library is not None:
        write_qkv_native(library, qkv_TC, cache, batch, cos_LH, sin_LH, q_norm_H, k_norm_H, eps)
        return
    K, H = cache.num_kv_heads, cache.head_dim
    q_TNH, k_TKH, v_TKH = qkv_rope_reference(qkv_TC, K, H, positions_T, cos_LH, sin_LH, q_norm_H, k_norm_H, eps)
    qkv_TC[:, : -K * H] = torch.cat((q_TNH, k_TKH), dim=1).flatten(1)
    cache.write(batch, k_TKH, v_TKH)


@qkv_rope.register_fake
def _(
    qkv_TC: Tensor,
    keys: Tensor,
    values: Tensor,
    key_scales: Tensor | None,
    value_scales: Tensor | None,
    positions_T: Tensor,
    query_start: Tensor,
    context_len_S: Tensor,
    block_tables: Tensor,
    cos_LH: Tensor,
    sin_LH: Tensor,
    q_norm_H: Tensor | None,
    k_norm_H: Tensor | None,
    eps: float,
) -> None:
    return None


def write_qkv_native(
    library: Library,
    qkv_TC: Tensor,
    cache: KvCache,
    batch: Batch,
    cos_LH: Tensor,
    sin_LH: Tensor,
    q_norm_H: Tensor | None,
    k_norm_H: Tensor | None,
    eps: float,
) -> None:
    """`write_qkv` by the kernels of one library; nothing is checked."""
    if len(qkv_TC) == 0:
        return
    library.functions.whet_qkv_rope(
        ctypes.byref(heads_struct(qkv_TC, cache)),
        pointer(qkv_TC),
        ctypes.byref(RopeStruct(cos_LH.data_ptr(), sin_LH.data_ptr())),
        pointer(q_norm_H),
        pointer(k_norm_H),
        ctypes.c_float(eps),
        ctypes.byref(cache_struct(cache)),
        ctypes.byref(ragged_struct(batch)),
    )


def _check_floats(
    qkv_TC: Tensor,
    head_dim: int,
    batch: Batch,
    cos_LH: Tensor,
    sin_LH: Tensor,
    q_norm_H: Tensor | None,
    k_norm_H: Tensor | None,
) -> None:
    wanted: list[tuple[str, Tensor, tuple[int, ...]]] = [("rows of q, k and v", qkv_TC, tuple(qkv_TC.shape))]
    wanted += [(name, table, (len(cos_LH), head_dim // 2)) for name, table in (("cos", cos_LH), ("sin", sin_LH))]
    norms = (("q_norm", q_norm_H), ("k_norm", k_norm_H))
    wanted += [(name, norm, (head_dim,)) for name, norm in norms if norm is not None]
    for name, tensor, shape in wanted:
        if tensor.dtype != torch.float32 or tensor.shape != shape or not tensor.is_contiguous():
            raise InputsError(f"{name}: float32 {list(shape)}, contiguous; not {tensor.dtype} {list(tensor.shape)}")
    if len(qkv_TC) and int(batch.positions.max()) >= len(cos_LH):
        raise InputsError(f"cos and sin have {len(cos_LH)} positions, too few for {int(batch.positions.max())}")
