"""Measure how closely a variant's outputs agree with the original's, which stands for a quality where there is none."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from whet.core.signature import argument_of
from whet.core.workload import ExaminedWorkload
from whet.errors import TargetError
from whet.measure.closeness import Sums
from whet.tuner.records import Agreement


def agree(examined: ExaminedWorkload, run: Callable[..., Sequence[Tensor]]) -> Agreement:
    """Compare a variant's outputs with the original's over the calibration batches.

    The worst output counts, and of an output the worst column, with its own spread. The errors are None where only one
    of the two returns NaN or infinity.

    Args:
        run: The variant, on flat tensors.

    Raises:
        TargetError: The variant returns other tensors than the original does.
    """
    sums = [Sums(is_batched=_is_batched(examined.flat_calibration[0], y)) for y in examined.outputs[0]]
    for batch, outputs in zip(examined.flat_calibration, examined.outputs, strict=True):
        with torch.no_grad():
            answers = run(*batch)
        if len(answers) != len(sums):
            raise TargetError(f"the variant returned {len(answers)} tensors, the original {len(sums)}")
        for total, a, b in zip(sums, outputs, answers, strict=True):
            if a.shape != b.shape or a.is_complex() != b.is_complex():
                raise TargetError(f"the variant returned {argument_of(None, b)}, the original {argument_of(None, a)}")
            total.add(a, b)
    each = [total.closeness() for total in sums]
    errors = [a.relative_error for a in each if a.relative_error is not None]
    distances = [a.distance for a in each if a.distance is not None]
    tops = [a.top1 for a in each if a.top1 is not None]
    is_finite = len(errors) == len(each)
    distance = max(distances) if is_finite else None
    worst = ((i, a.column) for i, a in enumerate(each) if a.column is not None and a.distance == distance)
    return Agreement(
        relative_error=max(errors) if is_finite else None,
        distance=distance,
        cosine=min(a.cosine for a in each),
        top1=min(tops) if tops else None,
        column=next((f"output {i}, {column.words}" for i, column in worst), ""),
    )


def _is_batched(inputs: Sequence[Tensor], output: Tensor) -> bool:
    """Return whether an output's first axis counts samples: it is as long as that of an input."""
    firsts = {x.shape[0] for x in inputs if x.dim()}
    return not firsts or (output.dim() > 0 and output.shape[0] in firsts)
