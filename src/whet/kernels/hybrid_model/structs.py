"""The structures of hybrid_model/kernel.h, as Python fills them in."""

import ctypes
from enum import IntFlag

from whet.kernels.decoder.structs import DecoderStruct
from whet.kernels.linear.packed import WeightsStruct
from whet.kernels.selective_model.structs import ModelStruct

Pointer = ctypes.c_void_p
Int = ctypes.c_int32
Float = ctypes.c_float


class MixerFlag(IntFlag):
    """Name the parts of a layer. The numbers are those of hybrid_model/kernel.h."""

    ATTENTION = 1
    MAMBA = 2
    CONV = 4
    MLP = 8


class ConvLayerStruct(ctypes.Structure):
    """Mirror the C structure of a gated short convolution."""

    _fields_ = (
        ("in_proj", WeightsStruct),
        ("out_proj", WeightsStruct),
        *((name, Pointer) for name in ("norm", "conv_weight", "conv_bias", "conv_state")),
    )


class HybridStruct(ctypes.Structure):
    _fields_ = (
        ("decoder", DecoderStruct),
        ("mamba", ModelStruct),
        ("mixers", Pointer),
        ("convs", ctypes.POINTER(ConvLayerStruct)),
        *((name, Int) for name in ("has_mamba", "conv_taps", "num_drafts", "squares")),
        *((name, Float) for name in ("embedding_factor", "logits_factor")),
    )
