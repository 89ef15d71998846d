"""The structures of the headers in graph/, as Python fills them in."""

import ctypes
from enum import IntEnum

import torch

from whet.kernels.linear.packed import WeightsStruct

Pointer = ctypes.c_void_p
Int = ctypes.c_int32
Float = ctypes.c_float

DIMS = 6
"""The dimensions of a view in C."""

TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.int32: 2, torch.int64: 3, torch.bool: 4}
"""The numbers of view.h for the types that a view may have."""


class Name(IntEnum):
    """Name an operation. The numbers are those of plan.h."""

    LINEAR = 0
    NORMALISE = 1
    EMBED = 2
    ATTEND = 3
    MULTIPLY = 4
    SOFTMAX = 5
    REDUCE = 6
    ELEMENTWISE = 7
    COPY = 8
    FILL = 9
    GATHER = 10


class ViewStruct(ctypes.Structure):
    """Mirror the C structure of numbers in memory. Zeros mean that there are none."""

    _fields_ = (
        ("data", Pointer),
        ("shape", ctypes.c_int64 * DIMS),
        ("stride", ctypes.c_int64 * DIMS),
        ("type", Int),
    )


class NormStruct(ctypes.Structure):
    _fields_ = (("weight", Pointer), ("bias", Pointer), ("eps", Float), ("is_rms", Int))


class LinearStruct(ctypes.Structure):
    _fields_ = (
        *((name, ViewStruct) for name in ("x", "out", "residual")),
        ("weights", WeightsStruct),
        ("norm", NormStruct),
        *((name, Int) for name in ("has_norm", "is_gated", "activation")),
    )


class NormaliseStruct(ctypes.Structure):
    _fields_ = (*((name, ViewStruct) for name in ("x", "other", "total", "out")), ("norm", NormStruct))


class EmbedStruct(ctypes.Structure):
    _fields_ = (
        ("num_tables", Int),
        ("tables", ctypes.POINTER(ViewStruct)),
        ("indices", ctypes.POINTER(ViewStruct)),
        ("out", ViewStruct),
    )


class AttendStruct(ctypes.Structure):
    _fields_ = (
        *((name, ViewStruct) for name in ("q", "k", "v", "out", "mask")),
        ("scale", Float),
        ("is_causal", Int),
        ("is_bf16", Int),
    )


class MultiplyStruct(ctypes.Structure):
    _fields_ = (("a", ViewStruct), ("b", ViewStruct), ("out", ViewStruct))


class SoftmaxStruct(ctypes.Structure):
    _fields_ = (("x", ViewStruct), ("out", ViewStruct))


class ReduceStruct(ctypes.Structure):
    _fields_ = (("x", ViewStruct), ("out", ViewStruct), ("kind", Int))


class StepStruct(ctypes.Structure):
    _fields_ = (("function", Int), ("a", Int), ("b", Int))


class ElementwiseStruct(ctypes.Structure):
    _fields_ = (
        ("num_inputs", Int),
        ("num_steps", Int),
        ("inputs", ctypes.POINTER(ViewStruct)),
        ("steps", ctypes.POINTER(StepStruct)),
        ("out", ViewStruct),
    )


class CopyStruct(ctypes.Structure):
    _fields_ = (("x", ViewStruct), ("out", ViewStruct), ("num_bytes", Int))


class FillStruct(ctypes.Structure):
    _fields_ = (("out", ViewStruct), ("value", Float))


class GatherStruct(ctypes.Structure):
    _fields_ = tuple((name, ViewStruct) for name in ("x", "indices", "out"))


class OperationStruct(ctypes.Structure):
    _fields_ = (("name", Int), ("of", Int), ("each", ctypes.c_int64), ("what", Pointer))


class SeenStruct(ctypes.Structure):
    _fields_ = (
        *((name, Pointer) for name in ("rows", "is_seen")),
        *((name, Int) for name in ("num_seen", "num_rows", "length")),
    )
