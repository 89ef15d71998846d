"""Measure how far a variant's outputs are from the model's, beside the usual values of these."""

import math

import torch
from torch import Tensor

from whet.measure.closeness import finite_entries


def real(y: Tensor) -> Tensor:
    """Return a tensor without gradients, and complex numbers as pairs."""
    return (torch.view_as_real(y.resolve_conj()) if y.is_complex() else y).detach()


def relative_error(found: Tensor, wanted: Tensor, usual: float | None = None, *, same_finite: bool = False) -> float:
    """Return the root mean square of the difference over a usual value; for integers, the share that differs.

    Infinity stands for another shape, or for complex numbers in place of real ones.

    Args:
        usual: The usual value; that of `wanted`, if not given. Either way, only places count where both are finite.
        same_finite: Whether infinity also stands for values that are not finite at the same places.
    """
    if found.shape != wanted.shape or found.is_complex() != wanted.is_complex():
        return math.inf
    if not (wanted.is_floating_point() or wanted.is_complex()):
        return float((found != wanted).double().mean()) if wanted.numel() else 0.0
    a, b = real(found).double(), real(wanted).double()
    if same_finite:
        finite = finite_entries(a, b)
        if finite is None:
            return math.inf
        a, b = finite
    else:
        is_finite = a.isfinite() & b.isfinite()
        a, b = a[is_finite], b[is_finite]
    return rms(a - b) / (usual or rms(b) or 1.0)


def rms(values: Tensor) -> float:
    """Return the root mean square; 0 without values."""
    return float(values.square().mean().sqrt()) if values.numel() else 0.0
