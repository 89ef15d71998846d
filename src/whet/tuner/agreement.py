"""How closely a variant's outputs agree with the original's: what stands in for a quality where there is none."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from whet.errors import TargetError
from whet.signature import argument_of
from whet.tuner.result import Agreement
from whet.workload import Subject, finite_entries

_SMALLEST_SPREAD = 1e-6  # of the norm: below that an output is a constant, whose spread is rounding


def agree(subject: Subject, run: Callable[..., Sequence[Tensor]]) -> Agreement:
    """Over the calibration batches; the worst output counts. run: takes and returns flat tensors.

    Raises TargetError where the variant returns other tensors than the original does.
    """
    sums = [_Sums() for _ in subject.outputs[0]]
    for batch, outputs in zip(subject.flat_calibration, subject.outputs, strict=True):
        with torch.no_grad():
            answers = run(*batch)
        if len(answers) != len(sums):
            raise TargetError(f"the variant returned {len(answers)} tensors, the original {len(sums)}")
        for total, a, b in zip(sums, outputs, answers, strict=True):
            if a.shape != b.shape or a.is_complex() != b.is_complex():
                raise TargetError(f"the variant returned {argument_of(None, b)}, the original {argument_of(None, a)}")
            total.add(a, b)
    each = [total.agreement() for total in sums]
    errors = [a.relative_error for a in each if a.relative_error is not None]
    distances = [a.distance for a in each if a.distance is not None]
    tops = [a.top1 for a in each if a.top1 is not None]
    is_finite = len(errors) == len(each)
    return Agreement(
        relative_error=max(errors) if is_finite else None,
        distance=max(distances) if is_finite else None,
        cosine=min(a.cosine for a in each),
        top1=min(tops) if tops else None,
    )


def distance_between(original: Tensor, variant: Tensor) -> float:
    """Return Agreement.distance of two tensors of one shape and dtype; infinity where the variant is not finite."""
    sums = _Sums()
    sums.add(original, variant)
    found = sums.agreement().distance
    return math.inf if found is None else found


class _Sums:
    """Of one output over all batches, in float64. Batches may differ in any size."""

    def __init__(self) -> None:
        self.num = self.num_unequal = self.num_rows = self.num_same_top = 0
        self.a = self.aa = self.bb = self.ab = self.dd = 0.0
        self.is_finite = self.is_whole = True

    def add(self, original: Tensor, variant: Tensor) -> None:
        if original.is_complex() and variant.is_complex():
            original, variant = (torch.view_as_real(y.resolve_conj()) for y in (original, variant))
        is_whole = not original.is_floating_point()
        self.is_whole &= is_whole
        finite = finite_entries(original.detach().double(), variant.detach().double())
        if finite is None:
            self.is_finite = False
            return
        a, b = finite
        self.num += a.numel()
        self.num_unequal += int((a != b).sum())
        self.a += float(a.sum())
        self.aa += float(a.square().sum())
        self.bb += float(b.square().sum())
        self.ab += float((a * b).sum())
        self.dd += float((a - b).square().sum())
        if not is_whole and original.dim() and original.shape[-1] > 1 and original.numel():
            rows, others = (y.detach().reshape(-1, y.shape[-1]) for y in (original, variant))
            same = rows.argmax(-1) == others.argmax(-1)
            self.num_rows += same.numel()
            self.num_same_top += int(same.sum())

    def agreement(self) -> Agreement:
        if not self.is_finite:
            return Agreement(relative_error=None, distance=None, cosine=0.0, top1=None)
        size, error = math.sqrt(self.aa), math.sqrt(self.dd)
        scale = size * math.sqrt(self.bb)
        return Agreement(
            relative_error=error / size if size else error,
            distance=self._distance(size, error),
            cosine=min(1.0, self.ab / scale) if scale else float(error == 0),
            top1=self.num_same_top / self.num_rows if self.num_rows else None,
        )

    def _distance(self, size: float, error: float) -> float:
        if error == 0:
            return 0.0
        if self.is_whole:
            return self.num_unequal / self.num
        spread = math.sqrt(max(0.0, self.aa - self.a**2 / self.num))
        if spread <= _SMALLEST_SPREAD * size:
            spread = size
        return 0.5 * (error / spread) ** 2 if spread else 1.0
