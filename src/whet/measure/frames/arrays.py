"""Read frames: arrays [H, W, C] or [H, W], uint8 or floating point in [0, 1]."""

from typing import Any

import numpy as np
import numpy.typing as npt

Frame = npt.NDArray[Any]
Array = npt.NDArray[np.float64]

_SLACK = 1e-3  # how far a floating-point frame may leave [0, 1]: half-precision models round by that much


def as_float(frame: Frame) -> Array:
    """Return a frame, uint8 or floating point in [0, 1], as float64 [H, W, C] in [0, 1]; itself where it is that.

    Raises:
        ValueError: It is of another type, neither [H, W, C] nor [H, W], empty, or has values outside [0, 1] or NaN.
    """
    array = np.asarray(frame)
    if array.ndim not in (2, 3) or array.size == 0:
        raise ValueError(f"a frame is an array [H, W, C] or [H, W] that is not empty; got one of shape {array.shape}")
    if array.ndim == 2:
        array = array[:, :, None]
    if array.dtype == np.uint8:
        return array.astype(np.float64) / 255
    if array.dtype.kind != "f":
        raise ValueError(f"a frame is uint8, or floating point in [0, 1]; got {array.dtype}")
    low, high = array.min(), array.max()
    if not (low >= -_SLACK and high <= 1 + _SLACK):  # also true of NaN
        raise ValueError("a floating-point frame lies in [0, 1]; this one has values outside, or NaN")
    image: Array = array.astype(np.float64, copy=False)
    return image if low >= 0 and high <= 1 else np.clip(image, 0, 1)


def pair(a: Frame, b: Frame) -> tuple[Array, Array]:
    """Return two frames as float64 [H, W, C] in [0, 1]; raise ValueError where one is none or their shapes differ."""
    first, second = as_float(a), as_float(b)
    if first.shape != second.shape:
        raise ValueError(f"frames of one shape are compared; got {first.shape} and {second.shape}")
    return first, second
