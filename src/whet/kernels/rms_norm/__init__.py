"""Root-mean-square normalisation, alone or with what stands around it, as torch operators.

    whet::rms_norm               y = norm(x)
    whet::add_rms_norm           sum = x + added; y = norm(sum)
    whet::rms_norm_quantise      norm(x) as int8 with a scale a row: what a product of int8 (torch._int_mm) takes
    whet::add_rms_norm_quantise  both

Computed in float32 whatever the inputs are. Shape suffixes: D width; the dimensions before it are rows.
"""

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from whet.errors import InputsError
from whet.kernels.build import Library
from whet.kernels.dispatch import as_floats, as_type, check_floats, kernels_for, pointer
from whet.kernels.rms_norm.reference import quantise_reference, rms_norm_reference


@torch.library.custom_op("whet::rms_norm", mutates_args=())
def rms_norm(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """x: [..., D] -> the same shape and type. Raises InputsError where the weight does not fit x."""
    return _compute(x, None, weight_D, eps).y


@torch.library.custom_op("whet::add_rms_norm", mutates_args=())
def add_rms_norm(x: Tensor, added: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x and added: [..., D] -> their sum and its normalisation, of the same shape and type."""
    made = _compute(x, added, weight_D, eps)
    return made.sum, made.y


@torch.library.custom_op("whet::rms_norm_quantise", mutates_args=())
def rms_norm_quantise(x: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x: [..., D] -> int8 [..., D] and float32 [...]: the normalised row is the one times the other."""
    made = _compute(x, None, weight_D, eps, quantise=True)
    return made.y, made.scale


@torch.library.custom_op("whet::add_rms_norm_quantise", mutates_args=())
def add_rms_norm_quantise(x: Tensor, added: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """x and added: [..., D] -> their sum, and its normalisation as int8 [..., D] and float32 [...]."""
    made = _compute(x, added, weight_D, eps, quantise=True)
    return made.sum, made.y, made.scale


@rms_norm.register_fake
def _(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    return x.new_empty(x.shape)


@add_rms_norm.register_fake
def _(x: Tensor, added: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape)


@rms_norm_quantise.register_fake
def _(x: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape, dtype=torch.int8), x.new_empty(x.shape[:-1], dtype=torch.float32)


@add_rms_norm_quantise.register_fake
def _(x: Tensor, added: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    scale = x.new_empty(x.shape[:-1], dtype=torch.float32)
    return x.new_empty(x.shape), x.new_empty(x.shape, dtype=torch.int8), scale


class _Made(NamedTuple):
    """sum is x where nothing was added; scale is that of int8, where it was asked for."""

    sum: Tensor
    y: Tensor
    scale: Tensor


def _compute(x: Tensor, added: Tensor | None, weight_D: Tensor, eps: float, *, quantise: bool = False) -> _Made:
    check_floats(x)
    if weight_D.shape != x.shape[-1:]:
        raise InputsError(f"the weight of rows of {x.shape[-1]} is [{x.shape[-1]}], not {list(weight_D.shape)}")
    if added is not None and (added.shape != x.shape or added.dtype != x.dtype):
        raise InputsError(
            f"what is added to {x.dtype} {list(x.shape)} has the same type and shape, "
            f"not {added.dtype} {list(added.shape)}"
        )
    weight_D = as_floats(weight_D)
    floats, more = as_floats(x), None if added is None else as_floats(added)
    library = kernels_for(x, added, weight_D)
    if library is None:
        made = _in_torch(floats, more, weight_D, eps, quantise)
    else:
        made = _by_kernel(library, floats, more, weight_D, eps, quantise)
    return _Made(as_type(made.sum, x), made.y if quantise else as_type(made.y, x), made.scale)


def _in_torch(x: Tensor, added: Tensor | None, weight_D: Tensor, eps: float, quantise: bool) -> _Made:
    total = x if added is None else x + added
    y = rms_norm_reference(total, weight_D, eps)
    return _Made(total, *quantise_reference(y)) if quantise else _Made(total, y, total)


def _by_kernel(
    library: Library, x: Tensor, added: Tensor | None, weight_D: Tensor, eps: float, quantise: bool
) -> _Made:
    D = x.shape[-1]
    total = x if added is None else torch.empty_like(x)
    y = torch.empty_like(x, dtype=torch.int8 if quantise else torch.float32)
    scale = torch.empty(x.shape[:-1]) if quantise else total
    library.functions.whet_rms_norm(
        pointer(x),
        pointer(added),
        pointer(weight_D),
        x.numel() // D,
        D,
        ctypes.c_float(eps),
        pointer(total),
        pointer(None if quantise else y),
        pointer(y if quantise else None),
        pointer(scale),
    )
    return _Made(total, y, scale)
