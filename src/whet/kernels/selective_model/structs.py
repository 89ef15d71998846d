"""The structures of selective_model/kernel.h, as Python fills them in."""

import ctypes

from whet.kernels.linear.packed import WeightsStruct

Pointer = ctypes.c_void_p
Int = ctypes.c_int32
Float = ctypes.c_float


class LayerStruct(ctypes.Structure):
    _fields_ = (
        *((name, WeightsStruct) for name in ("in_proj", "x_proj", "dt_proj", "out_proj")),
        *((name, Pointer) for name in ("norm", "conv_weight", "conv_bias", "rates", "d", "delta_bias", "gated_norm")),
        *((name, Pointer) for name in ("conv_state", "scan_state", "draft_delta", "draft_b")),
    )


class ModelStruct(ctypes.Structure):
    _fields_ = (
        *((name, Int) for name in ("per_head", "hidden", "inner", "conv_size", "taps", "num_states", "rank")),
        *((name, Int) for name in ("num_heads", "head_dim", "num_groups", "vocab", "num_layers", "num_drafts")),
        ("norms_first", Int),
        *((name, Float) for name in ("eps", "projection_eps", "delta_min", "delta_max", "out_factor")),
        ("in_factors", Pointer),
        ("layers", ctypes.POINTER(LayerStruct)),
        ("final_norm", Pointer),
        ("ones", Pointer),
        ("embedding", Pointer),
        ("embedding_is_bf16", Int),
        ("head", WeightsStruct),
    )


class SegmentStruct(ctypes.Structure):
    """Mirror the C structure of the tokens that a step has of one sequence."""

    _fields_ = tuple((name, Int) for name in ("state_row", "first", "count", "begins", "replayed", "settles", "again"))


class TokensStruct(ctypes.Structure):
    _fields_ = (
        ("num_tokens", Int),
        ("num_segments", Int),
        ("segments", Pointer),
        *((name, Int) for name in ("num_replayed", "has_drafts")),
    )
