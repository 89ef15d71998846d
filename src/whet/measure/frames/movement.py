"""Compare how an output and its reference move from frame to frame."""

import math
from collections.abc import Sequence

import numpy as np

from whet.measure.frames.arrays import Frame, pair

STILL = 0.5 / 255  # a mean change up to this is no movement: half a level of 8 bits, as compression leaves it


def flicker(before: Frame, after: Frame, reference_before: Frame, reference_after: Frame) -> float:
    """Return how much an output changes between two frames where its reference does not: the mean of |ΔO - ΔR|.

    Raises:
        ValueError: One is no frame, or their shapes differ.
    """
    first, reference_first = pair(before, reference_before)
    second, reference_second = pair(after, reference_after)
    if first.shape != second.shape:
        raise ValueError(f"frames of one shape are compared; got {first.shape} and {second.shape}")
    return float(np.abs((second - first) - (reference_second - reference_first)).mean())


def repetition(outputs: Sequence[Frame], references: Sequence[Frame], *, still: float = STILL) -> float:
    """Return how much newer the last output is than the ones before it, in relation to its reference.

    This is the minimum over the lags k of MAE(O_t, O_{t-k}) / MAE(R_t, R_{t-k}). It is about 1 if the output moves as
    the reference does, 0 if the output has stopped or runs in a loop of at most as many frames as there are lags, and
    NaN if the reference stands still at every lag.

    Args:
        outputs: The latest outputs, oldest first; the last one is judged. All have one shape.
        references: The reference of each output, of the same shape.
        still: The mean change of the reference up to which a lag is left out.

    Raises:
        ValueError: There are other numbers of outputs and of references, one is no frame, or their shapes differ.
    """
    if len(outputs) != len(references):
        raise ValueError(f"each output has one reference; got {len(outputs)} outputs and {len(references)} references")
    pairs = [pair(output, reference) for output, reference in zip(outputs, references, strict=True)]
    if len({output.shape for output, _ in pairs}) > 1:
        raise ValueError("frames of one shape are compared; these outputs have several")
    ratios = []
    for output, reference in pairs[:-1]:
        moved = float(np.abs(pairs[-1][1] - reference).mean())
        if moved > still:
            ratios.append(float(np.abs(pairs[-1][0] - output).mean()) / moved)
    return min(ratios, default=math.nan)
