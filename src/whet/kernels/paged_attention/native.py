"""Compute attention with the kernels, and make the structures that their functions take."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from whet.kernels.build import Library
from whet.kernels.decoder.structs import CacheStruct, HeadsStruct, Kv, RaggedStruct
from whet.kernels.paged_attention.cache import Batch, KvCache

_KINDS = {torch.float32: Kv.F32, torch.bfloat16: Kv.BF16, torch.int8: Kv.S8}


def paged_attention_native(
    library: Library, qkv_TC: Tensor, caches: Sequence[KvCache], batch: Batch, softmax_scale: float, window: int
) -> Tensor:
    """Compute attention over caches in turn, as a decoder's layers do, in one parallel region. Nothing is checked.

    Args:
        qkv_TC: Rows of q, k and v, float32 and contiguous.
        window: 0, or the number of tokens that a token sees, including itself.

    Returns:
        float32 [T, N * H] of the last cache.

    Raises:
        MemoryError: There is not enough memory for the work.
    """
    heads = heads_struct(qkv_TC, caches[0])
    out_TC = qkv_TC.new_empty(len(qkv_TC), heads.num_heads * heads.head_dim)
    if len(qkv_TC) == 0:
        return out_TC
    structs = (CacheStruct * len(caches))(*(cache_struct(cache) for cache in caches))
    failed = library.functions.whet_paged_attention(
        ctypes.byref(heads),
        qkv_TC.data_ptr(),
        softmax_scale,
        window,
        structs,
        len(caches),
        ctypes.byref(ragged_struct(batch)),
        out_TC.data_ptr(),
    )
    if failed:
        raise MemoryError(f"no memory for attention of {len(qkv_TC)} tokens")
    return out_TC


def heads_struct(qkv_TC: Tensor, cache: KvCache) -> HeadsStruct:
    """The query heads are what the cache's heads leave of a row."""
    return HeadsStruct(qkv_TC.shape[-1] // cache.head_dim - 2 * cache.num_kv_heads, cache.num_kv_heads, cache.head_dim)


def cache_struct(cache: KvCache) -> CacheStruct:
    """Return the C structure of a cache. It is valid as long as the cache's tensors live."""
    tensors = (cache.keys, cache.values, cache.key_scales, cache.value_scales)
    return CacheStruct(_KINDS[cache.keys.dtype], *(None if tensor is None else tensor.data_ptr() for tensor in tensors))


def ragged_struct(batch: Batch) -> RaggedStruct:
    """Return the C structure of a batch. It is valid as long as the batch's tensors live."""
    return RaggedStruct(
        len(batch.positions),
        len(batch.context_len),
        batch.positions.data_ptr(),
        batch.query_start.data_ptr(),
        batch.context_len.data_ptr(),
        batch.block_tables.data_ptr(),
        batch.block_tables.shape[1],
    )
