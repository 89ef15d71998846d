"""The structures of decoder/kernel.h, as Python fills them in."""

import ctypes
from enum import IntEnum

from whet.kernels.linear.packed import WeightsStruct

Pointer = ctypes.c_void_p
Int = ctypes.c_int32
Float = ctypes.c_float


class Kv(IntEnum):
    """Name how keys and values are stored. The numbers are those of paged_attention/cache.h."""

    F32 = 0
    BF16 = 1
    S8 = 2


class HeadsStruct(ctypes.Structure):
    """Mirror the C structure of a decoder's heads."""

    _fields_ = (("num_heads", Int), ("num_kv_heads", Int), ("head_dim", Int))


class CacheStruct(ctypes.Structure):
    """Mirror the C structure of one layer's key-value cache."""

    _fields_ = (
        ("kind", Int),
        ("keys", Pointer),
        ("values", Pointer),
        ("key_scales", Pointer),
        ("value_scales", Pointer),
    )


class RaggedStruct(ctypes.Structure):
    """Mirror the C structure of a ragged batch."""

    _fields_ = (
        ("num_tokens", Int),
        ("num_seqs", Int),
        ("positions", Pointer),
        ("query_start", Pointer),
        ("context_len", Pointer),
        ("block_tables", Pointer),
        ("max_blocks", Int),
    )


class RopeStruct(ctypes.Structure):
    """Mirror the C structure of the rotary tables."""

    _fields_ = (("cos", Pointer), ("sin", Pointer))


class LayerStruct(ctypes.Structure):
    """Mirror the C structure of one decoder layer."""

    _fields_ = (
        ("qkv", WeightsStruct),
        ("o", WeightsStruct),
        ("gate_up", WeightsStruct),
        ("down", WeightsStruct),
        ("attention_norm", Pointer),
        ("mlp_norm", Pointer),
        ("q_norm", Pointer),
        ("k_norm", Pointer),
        ("cache", CacheStruct),
        ("window", Int),
    )


class DecoderStruct(ctypes.Structure):
    """Mirror the C structure of a whole decoder."""

    _fields_ = (
        ("heads", HeadsStruct),
        ("hidden", Int),
        ("intermediate", Int),
        ("vocab", Int),
        ("num_layers", Int),
        ("eps", Float),
        ("softmax_scale", Float),
        ("attention_factor", Float),
        ("gate_factor", Float),
        ("mlp_factor", Float),
        ("rope", RopeStruct),
        ("layers", ctypes.POINTER(LayerStruct)),
        ("final_norm", Pointer),
        ("embedding", Pointer),
        ("embedding_is_bf16", Int),
        ("head", WeightsStruct),
    )
