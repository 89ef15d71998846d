"""Compute attention of a flat, ragged batch over keys and values in blocks, as a torch operator.

    whet::paged_attention   decode, chunked prefill and prefix hits alike; grouped heads; float32, bf16 or int8 cache

Shape suffixes: T tokens, S sequences, C numbers of a row, (query heads + 2 key-value heads) x H, H head width.
"""

from typing import Any

import torch
from torch import Tensor

from whet.errors import InputsError
from whet.kernels.dispatch import as_floats, as_type, check_floats, kernels_for
from whet.kernels.paged_attention.cache import Batch, KvCache, check_batch
from whet.kernels.paged_attention.native import paged_attention_native
from whet.kernels.paged_attention.reference import paged_attention_reference

__all__ = ["Batch", "KvCache", "attend", "check_row", "paged_attention"]


def attend(qkv_TC: Tensor, cache: KvCache, batch: Batch, softmax_scale: float, window: int = 0) -> Tensor:
    """Compute attention. The cache holds the batch's keys and values already.

    With a cache in bf16 or int8 the queries and the softmax's weights are rounded to bf16; sums are float32. A row's
    result is the same, bit for bit, whatever else is in the batch and however its sequence is split over calls.

    Args:
        window: 0, or the number of tokens that a token sees, including itself.

    Returns:
        [T, query heads x H] of the same type as `qkv_TC`.

    Raises:
        InputsError: The sizes do not fit.
    """
    out_TC: Tensor = paged_attention(
        qkv_TC, cache.keys, cache.values, cache.key_scales, cache.value_scales, *batch, softmax_scale, window
    )
    return out_TC


def check_row(qkv_TC: Tensor, cache: KvCache) -> None:
    """Raise InputsError unless rows of q, k and v have the cache's heads."""
    K, H = cache.num_kv_heads, cache.head_dim
    num_heads, rest = divmod(qkv_TC.shape[-1], H)
    num_heads -= 2 * K
    if qkv_TC.dim() != 2 or rest or num_heads <= 0 or num_heads % K:
        raise InputsError(
            f"rows of q, k and v for {K} key-value heads are (a multiple of {K}, and {2 * K}) heads of {H}, "
            f"not {list(qkv_TC.shape)}"
        )


@torch.library.custom_op("whet::paged_attention", mutates_args=())
def paged_attention(
    qkv_TC: Tensor,
    keys: Tensor,
    values: Tensor,
    key_scales: Tensor | None,
    value_scales: Tensor | None,
    positions_T: Tensor,
    query_start: Tensor,
    context_len_S: Tensor,
    block_tables: Tensor,
    softmax_scale: float,
    window: int,
) -> Tensor:
    cache, batch = (
        KvCache(keys, values, key_scales, value_scales),
        Batch(positions_T, query_start, context_len_S, block_tables),
    )
    check_floats(qkv_TC)
    cache.check()
    check_row(qkv_TC, cache)
    check_batch(cache, batch, len(qkv_TC))
    if window < 0:
        raise InputsError(f"the window is 0 for none, or a number of tokens, not {window}")
    library = kernels_for(qkv_TC, keys, values, key_scales, value_scales, *batch)
    if library is None:
        num_heads = qkv_TC.shape[-1] // cache.head_dim - 2 * cache.num_kv_heads
        q_TNH = qkv_TC.float().unflatten(-1, (-1, cache.head_dim))[:, :num_heads]
        out_TC = paged_attention_reference(q_TNH, cache, batch, softmax_scale, window).flatten(1)
    else:
        out_TC = paged_attention_native(library, as_floats(qkv_TC), [cache], batch, softmax_scale, window)
    return as_type(out_TC, qkv_TC)


@paged_attention.register_fake
def _(qkv_TC: Tensor, keys: Tensor, values: Tensor, *_: Any) -> Tensor:
    return qkv_TC.new_empty(qkv_TC.shape[0], qkv_TC.shape[1] - 2 * keys.shape[1] * values.shape[3])
