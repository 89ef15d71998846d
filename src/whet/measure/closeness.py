"""Measure how close one variant's output tensors are to another variant's, as a whole and column by column."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from whet.measure.columns import ROUNDING, Column, ColumnSums


@dataclass(frozen=True)
class Closeness:
    """Hold how close one output of a variant is to the original's, over all batches.

    Attributes:
        relative_error: The norm of the difference over the norm of the original. None if only one of the two holds NaN
            or infinity at some place.
        distance: Half the squared error over the squared spread of the original's values. For values around zero it is
            1 - cosine; it also shows an offset or a scale. For whole numbers, the share that differs. A column whose
            error is large for its own spread raises it: see `Column.distance`.
        cosine: The cosine of all values as one vector.
        top1: The share of rows whose largest entry is at the same place; None without rows of two or more floats.
        column: The column that decides the distance; None where the output as a whole does.
    """

    relative_error: float | None
    distance: float | None
    cosine: float
    top1: float | None
    column: Column | None = None


def distance_between(original: Tensor, variant: Tensor) -> float:
    """Return the distance of two tensors of one shape and dtype; infinity where the variant is not finite."""
    sums = Sums()
    sums.add(original, variant)
    found = sums.closeness().distance
    return math.inf if found is None else found


def finite_entries(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the finite entries of two tensors of one shape, or None where their infinities or NaNs differ."""
    is_finite = _common_places(a, b)
    if is_finite is None:
        return None
    return (a, b) if is_finite is True else (a[is_finite], b[is_finite])


def _common_places(a: Tensor, b: Tensor) -> Tensor | Literal[True] | None:
    """Return the places where both tensors are finite, True for all; None where only one of them is."""
    is_finite = a.isfinite()
    if is_finite.all() and b.isfinite().all():
        return True
    odd_a, odd_b = a[~is_finite], b[~is_finite]
    if not b[is_finite].isfinite().all() or not torch.equal(odd_a.isnan(), odd_b.isnan()):
        return None
    if not torch.equal(odd_a[~odd_a.isnan()].double(), odd_b[~odd_b.isnan()].double()):
        return None
    return is_finite


class Sums:
    """Sum over all batches, which may differ in size, what one output's closeness follows from, in float64."""

    def __init__(self, *, is_batched: bool = True, by_column: bool = True) -> None:
        """Start with no batch.

        Args:
            is_batched: Whether the first axis counts samples. Otherwise its entries are columns too.
            by_column: Whether columns count. Those of an image are lines of pixels, whose scale says nothing.
        """
        self.num = self.num_unequal = self.num_rows = self.num_same_top = 0
        self.a = self.aa = self.bb = self.ab = self.dd = 0.0
        self.is_finite = self.is_whole = True
        self.rounding = 0.0
        self.columns = ColumnSums(is_batched=is_batched) if by_column else None

    def add(self, original: Tensor, variant: Tensor) -> None:
        """Add one batch: two tensors of one shape."""
        if original.is_complex() and variant.is_complex():
            original, variant = (torch.view_as_real(y.resolve_conj()) for y in (original, variant))
        is_whole = not original.is_floating_point()
        self.is_whole &= is_whole
        self.rounding = max(self.rounding, 0.0 if is_whole else torch.finfo(original.dtype).eps)
        a, b = original.detach().double(), variant.detach().double()
        places = _common_places(a, b)
        if places is None:
            self.is_finite = False
            return
        if places is not True:  # what both hold alike counts nothing
            a, b = a.where(places, 0.0), b.where(places, 0.0)
        squares, errors = a.square(), (a != b).double() if is_whole else (a - b).square()
        self.num += a.numel() if places is True else int(places.sum())
        self.a += float(a.sum())
        self.aa += float(squares.sum())
        self.bb += float(b.square().sum())
        self.ab += float((a * b).sum())
        self.dd += float((a - b).square().sum() if is_whole else errors.sum())
        self.num_unequal += int(errors.sum()) if is_whole else 0
        if self.columns is not None:
            self.columns.add(a, squares, errors, None if places is True else places)
        if not is_whole and original.dim() and original.shape[-1] > 1 and original.numel():
            rows, others = (y.detach().reshape(-1, y.shape[-1]) for y in (original, variant))
            same = rows.argmax(-1) == others.argmax(-1)
            self.num_rows += same.numel()
            self.num_same_top += int(same.sum())

    def closeness(self) -> Closeness:
        if not self.is_finite:
            return Closeness(relative_error=None, distance=None, cosine=0.0, top1=None)
        size, error = math.sqrt(self.aa), math.sqrt(self.dd)
        scale = size * math.sqrt(self.bb)
        distance = self._distance(size, error)
        column = (
            self.columns.worst(None if self.is_whole else self.rounding) if self.columns is not None and error else None
        )
        if column is not None and column.distance <= distance:
            column = None
        return Closeness(
            relative_error=error / size if size else error,
            distance=column.distance if column else distance,
            cosine=min(1.0, self.ab / scale) if scale else float(error == 0),
            top1=self.num_same_top / self.num_rows if self.num_rows else None,
            column=column,
        )

    def _distance(self, size: float, error: float) -> float:
        if error == 0:
            return 0.0
        if self.is_whole:
            return self.num_unequal / self.num
        spread = math.sqrt(max(0.0, self.aa - self.a**2 / self.num))
        if spread <= ROUNDING * size:
            spread = size
        return 0.5 * (error / spread) ** 2 if spread else 1.0
