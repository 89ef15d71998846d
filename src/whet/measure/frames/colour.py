"""Compare the colours of two images by their histograms."""

import numpy as np

from whet.measure.frames.arrays import Array, Frame, as_float

_BINS = 32  # of each channel


def histogram(frame: Frame) -> Array:
    """Return the histogram of each channel, [C, 32], whose rows add up to 1; raise ValueError if it is no frame."""
    image = as_float(frame)
    at = np.minimum((image * _BINS).astype(np.int64), _BINS - 1).reshape(-1, image.shape[2])
    return np.stack([np.bincount(channel, minlength=_BINS) for channel in at.T]) / len(at)


def distance(a: Array, b: Array) -> float:
    """Return the Hellinger distance of two histograms [C, 32]: 0 if they are equal, 1 if they share no bin.

    The squares of the channels' distances are averaged: √(1 - mean over channels of Σ √(a b)).

    Raises:
        ValueError: They are of different numbers of channels.
    """
    if a.shape != b.shape:
        raise ValueError(f"the histograms have unequal shapes, {a.shape} and {b.shape}")
    overlap = np.sqrt(a * b).sum(axis=-1).mean()
    return float(np.sqrt(max(0.0, 1 - overlap)))
