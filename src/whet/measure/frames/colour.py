"""Compare the colours of two images by their histograms."""

import numpy as np

from whet.measure.frames.arrays import Array, Frame, as_float

BINS = 32  # of each channel


def histogram(frame: Frame, *, bins: int = BINS) -> Array:
    """Return the histogram of each channel, [C, bins], whose rows add up to 1; raise ValueError if it is no frame."""
    image = as_float(frame)
    at = np.minimum((image * bins).astype(np.int64), bins - 1).reshape(-1, image.shape[2])
    return np.stack([np.bincount(channel, minlength=bins) for channel in at.T]) / len(at)


def distance(a: Array, b: Array) -> float:
    """Return the Hellinger distance of two histograms [C, bins]: 0 if they are equal, 1 if they share no bin.

    The squares of the channels' distances are averaged: √(1 - mean over channels of Σ √(a b)).
    """
    overlap = np.sqrt(a * b).sum(axis=-1).mean()
    return float(np.sqrt(max(0.0, 1 - overlap)))


def hellinger(a: Frame, b: Frame, *, bins: int = BINS) -> float:
    """Return the Hellinger distance of the colour histograms of two frames, in [0, 1]. Their sizes may differ.

    Raises:
        ValueError: One is no frame, or the numbers of channels differ.
    """
    first, second = histogram(a, bins=bins), histogram(b, bins=bins)
    if first.shape != second.shape:
        raise ValueError(f"frames of as many channels are compared; got {len(first)} and {len(second)}")
    return distance(first, second)
