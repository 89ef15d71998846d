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
    _fields_ = (("num_heads", Int), ("num_kv_heads", Int), ("head_dim", Int))


class CacheStruct(ctypes.Structure):
    _fields_ = (("kind", Int), *((name, Pointer) for name in ("keys", "values", "key_scales", "value_scales")))


class RaggedStruct(ctypes.Structure):
    _fields_ = (
        *((name, Int) for name in ("num_tokens", "num_seqs")),
        *((name, Pointer) for name in ("positions", "query_start", "context_len", "block_tables")),
        ("max_blocks", Int),
    )


class RopeStruct(ctypes.Structure):
    _fields_ = (("cos", Pointer), ("sin", Pointer))


class LayerStruct(ctypes.Structure):
    _fields_ = (
        *((name, WeightsStruct) for name in ("qkv", "o", "gate_up", "down")),
        *((name, Pointer) for name in ("attention_norm", "mlp_norm", "q_norm", "k_norm")),
        ("cache", CacheStruct),
        ("window", Int),
    )


class DecoderStruct(ctypes.Structure):
    _fields_ = (
        ("heads", HeadsStruct),
        *((name, Int) for name in ("hidden", "intermediate", "vocab", "num_layers")),
        *((name, Float) for name in ("eps", "softmax_scale", "attention_factor", "gate_factor", "mlp_factor")),
        ("rope", RopeStruct),
        ("layers", ctypes.POINTER(LayerStruct)),
        ("final_norm", Pointer),
        ("embedding", Pointer),
        ("embedding_is_bf16", Int),
        ("head", WeightsStruct),
        ("group", Pointer),  # what whet_group_new returned; None where one process has the whole model
    )
