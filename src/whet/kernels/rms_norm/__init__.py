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
from whet.kernels.dispatch import as_rows, check_floats, kernels_for, pointer
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
    """What was asked for; the rest is empty."""

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
    x_MD, added_MD, weight_D = as_rows(x), None if added is None else as_rows(added), weight_D.float().contiguous()
    library = kernels_for(x)
    if library is None:
        made = _in_torch(x_MD, added_MD, weight_D, eps, quantise)
    else:
        made = _by_kernel(library, x_MD, added_MD, weight_D, eps, quantise)
    y = made.y if quantise else made.y.to(x.dtype)
    return _Made(
        made.sum if added is None else made.sum.to(x.dtype).view(x.shape),
        y.view(x.shape),
        made.scale.view(x.shape[:-1]),
    )


def _in_torch(x_MD: Tensor, added_MD: Tensor | None, weight_D: Tensor, eps: float, quantise: bool) -> _Made:
    sum_MD = x_MD if added_MD is None else x_MD + added_MD
    y_MD = rms_norm_reference(sum_MD, weight_D, eps)
    return _Made(sum_MD, *quantise_reference(y_MD)) if quantise else _Made(sum_MD, y_MD, x_MD.new_empty(len(x_MD)))


def _by_kernel(
    library: Library, x_MD: Tensor, added_MD: Tensor | None, weight_D: Tensor, eps: float, quantise: bool
) -> _Made:
    M, D = x_MD.shape
    sum_MD = x_MD if added_MD is None else torch.empty(M, D)
    y_MD = torch.empty(M, D, dtype=torch.int8 if quantise else torch.float32)
    scale_M = torch.empty(M)
    library.functions.whet_rms_norm(
        pointer(x_MD),
        pointer(added_MD),
        pointer(weight_D),
        M,
        D,
        ctypes.c_float(eps),
        pointer(sum_MD),
        pointer(None if quantise else y_MD),
        pointer(y_MD if quantise else None),
        pointer(scale_M),
    )
    return _Made(sum_MD, y_MD, scale_M)
