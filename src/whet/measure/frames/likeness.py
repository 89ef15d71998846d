"""Compare two images: PSNR and SSIM."""

import math

import numpy as np
import scipy

from whet.measure.frames.arrays import Frame, pair

_SIGMA = 1.5  # of SSIM's Gaussian window, in pixels
_WINDOW = 11  # its width in pixels
_C1, _C2 = 0.01**2, 0.03**2


def psnr(a: Frame, b: Frame) -> float:
    """Return the peak signal-to-noise ratio of two frames in decibels: 10 log10(1 / MSE); infinity for equal frames.

    Raises:
        ValueError: One is no frame, or their shapes differ.
    """
    first, second = pair(a, b)
    error = float(np.square(first - second).mean())
    return math.inf if error == 0 else -10 * math.log10(error)


def ssim(a: Frame, b: Frame) -> float:
    """Return the structural similarity of two frames, from -1 to 1, as the mean over channels and pixels.

    The window is a Gaussian of 11×11 pixels with σ = 1.5. Pixels closer than 5 to a border are left out.

    Source: Wang, Bovik, Sheikh and Simoncelli, "Image quality assessment: from error visibility to structural
    similarity" (2004), with K1 = 0.01 and K2 = 0.03.

    Raises:
        ValueError: One is no frame, their shapes differ, or a side is shorter than 11 pixels.
    """
    x, y = pair(a, b)
    if min(x.shape[:2]) < _WINDOW:
        raise ValueError(f"SSIM compares frames of at least {_WINDOW}×{_WINDOW} pixels; got {x.shape[1]}×{x.shape[0]}")
    mean_x, mean_y = _blurred(x), _blurred(y)
    var_x = _blurred(x * x) - mean_x * mean_x
    var_y = _blurred(y * y) - mean_y * mean_y
    covariance = _blurred(x * y) - mean_x * mean_y
    likeness = (2 * mean_x * mean_y + _C1) * (2 * covariance + _C2)
    likeness /= (mean_x * mean_x + mean_y * mean_y + _C1) * (var_x + var_y + _C2)
    border = _WINDOW // 2
    return float(likeness[border:-border, border:-border].mean())


def _blurred(image: np.ndarray) -> np.ndarray:
    """Return an image [H, W, C], blurred by SSIM's window."""
    radius = (_WINDOW // 2, _WINDOW // 2, 0)
    blurred: np.ndarray = scipy.ndimage.gaussian_filter(image, (_SIGMA, _SIGMA, 0), radius=radius)
    return blurred
