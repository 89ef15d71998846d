"""The structures of selective_scan/problem.h, forward.h and backward.h, as Python fills them in."""

import ctypes

import torch
from torch import Tensor

Pointer = ctypes.c_void_p
Int = ctypes.c_int32
Float = ctypes.c_float


class View(ctypes.Structure):
    """Mirror the C structure of a tensor whose rows lie anywhere."""

    _fields_ = (("data", Pointer), ("batch_stride", ctypes.c_int64), ("row_stride", ctypes.c_int64), ("is_bf16", Int))


class Problem(ctypes.Structure):
    """Mirror the C structure of what a scan reads."""

    _fields_ = (
        *((name, Int) for name in ("batch", "length", "num_heads", "head_dim", "num_groups", "num_states")),
        *((name, Int) for name in ("per_head", "softplus")),
        *((name, Float) for name in ("delta_min", "delta_max")),
        *((name, View) for name in ("u", "delta", "b", "c", "z")),
        *((name, Pointer) for name in ("a", "d", "delta_bias", "initial")),
    )


class Results(ctypes.Structure):
    """Mirror the C structure of what forward writes."""

    _fields_ = (("out", Pointer), ("out_is_bf16", Int), ("last", Pointer), ("y", Pointer), ("starts", Pointer))


class Gradients(ctypes.Structure):
    """Mirror the C structure of what backward reads and writes."""

    _fields_ = (
        ("out", View),
        *((name, Pointer) for name in ("last", "y", "starts", "u", "delta", "z", "initial", "a", "d", "b", "c")),
    )


def rows(x: Tensor) -> Tensor:
    """Return x [B, L, ...] with the numbers of a row next to each other, in float32 or bfloat16; a copy if need be."""
    if x.dtype not in (torch.float32, torch.bfloat16):
        x = x.float()
    dense = True
    size = 1
    for length, stride in zip(reversed(x.shape[2:]), reversed(x.stride()[2:]), strict=True):
        dense &= length == 1 or stride == size
        size *= length
    return x if dense else x.contiguous()


def view(x: Tensor | None) -> View:
    """Return the structure of a tensor that `rows` returned. The tensor must outlive it."""
    if x is None:
        return View(None, 0, 0, 0)
    return View(x.data_ptr(), x.stride(0), x.stride(1), x.dtype is torch.bfloat16)
