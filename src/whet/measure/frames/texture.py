"""Measure the texture of one image."""

import numpy as np

from whet.measure.frames.arrays import Array, Frame, as_float

_WEIGHTS = np.array([0.299, 0.587, 0.114])  # of red, green and blue in the luma of ITU-R BT.601


def luminance(frame: Frame) -> Array:
    """Return the luma of a frame, [H, W] in [0, 1]: BT.601's of RGB, and the mean of any other number of channels.

    Raises:
        ValueError: It is no frame.
    """
    image = as_float(frame)
    grey: Array = image @ _WEIGHTS if image.shape[2] == len(_WEIGHTS) else image.mean(axis=2)
    return grey


def sharpness(frame: Frame) -> float:
    """Return the variance of the Laplacian of a frame's luma, off its borders: high where there are fine edges.

    Source: Pech-Pacheco et al., "Diatom autofocusing in brightfield microscopy: a comparative study" (2000).

    Raises:
        ValueError: It is no frame, or a side is shorter than 3 pixels.
    """
    grey = luminance(frame)
    if min(grey.shape) < 3:
        raise ValueError(f"sharpness takes frames of at least 3×3 pixels; got {grey.shape[1]}×{grey.shape[0]}")
    across = grey[1:-1, :-2] + grey[1:-1, 2:]
    down = grey[:-2, 1:-1] + grey[2:, 1:-1]
    return float((across + down - 4 * grey[1:-1, 1:-1]).var())
