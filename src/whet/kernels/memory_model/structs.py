"""The structures of memory_model, as Python fills them in."""

import ctypes

from whet.kernels.decoder.structs import DecoderStruct
from whet.kernels.linear.packed import WeightsStruct

Pointer = ctypes.c_void_p
Int = ctypes.c_int32
Float = ctypes.c_float


class SizesStruct(ctypes.Structure):
    """Mirror the C structure of the sizes of memories."""

    _fields_ = (
        *((name, Int) for name in ("slots", "first_slots", "width", "span", "heads", "depth", "chunk")),
        *((name, Float) for name in ("eps", "clip")),
    )


class MemoryLayerStruct(ctypes.Structure):
    _fields_ = (
        ("into", WeightsStruct),
        ("out", WeightsStruct),
        *((name, Pointer) for name in ("norm", "q_norm", "k_norm", "queries", "centres", "sharpness", "openness")),
        *((name, Pointer) for name in ("first", "tt_norm", "state", "beyond", "drafts")),
    )


class MemoryModelStruct(ctypes.Structure):
    _fields_ = (
        ("decoder", DecoderStruct),
        ("sizes", SizesStruct),
        *((name, Int) for name in ("segment", "sets", "num_drafts")),
        ("layers", ctypes.POINTER(MemoryLayerStruct)),
        ("has_memories", Pointer),
    )


class SegmentStruct(ctypes.Structure):
    """Mirror the C structure of the tokens that a step has of one sequence."""

    _fields_ = tuple((name, Int) for name in ("row", "first", "count", "position", "replayed", "settles"))
