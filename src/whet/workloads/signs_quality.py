"""Measure how good drawn frames are: against the true ones, in sharpness, and by whether the digit is recognised.

Frames are float32 in [-1, 1]. Shape suffixes: B batch, C channels, H height, W width.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from whet.models.resnet import ResNet
from whet.workloads.signs_classifier import is_recognised
from whet.workloads.signs_data import ClipMaker, Photos, camera_frames, luma
from whet.workloads.signs_noise import as_shown

RANGE = 2.0  # of pixels

_WINDOW, _SIGMA = 11, 1.5  # pixels of SSIM's window, each way, and its standard deviation
_BATCH = 32  # clips that are drawn at a time

Draw = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Draw frames [B, 3, 64, 64] from grey frames, previous frames (zeros where there is none) and digits."""


@dataclass(frozen=True, kw_only=True)
class FrameQuality:
    """Hold means over frames.

    Attributes:
        psnr_db: Peak signal-to-noise ratio to the true frames, in dB.
        ssim: Structural similarity to the true frames, at most 1.
        sharpness: The mean variance of the frames' Laplacian, over that of the true frames.
        accuracy: The share of frames whose digit our classifier recognises.
    """

    psnr_db: float
    ssim: float
    sharpness: float
    accuracy: float


def psnr(frames_BCHW: Tensor, truth_BCHW: Tensor) -> Tensor:
    """Return each frame's peak signal-to-noise ratio in dB, [B]."""
    error_B = (frames_BCHW - truth_BCHW).double().square().mean((1, 2, 3))
    return 10 * torch.log10(RANGE**2 / error_B)


def ssim(frames_BCHW: Tensor, truth_BCHW: Tensor) -> Tensor:
    """Return each frame's structural similarity, [B], as Wang et al. (2004) with a Gaussian window of 11 x 11.

    Windows that reach beyond the frame are left out.
    """
    x, y = frames_BCHW.double(), truth_BCHW.double()
    x_mean, y_mean = _blurred(x), _blurred(y)
    x_var, y_var = _blurred(x * x) - x_mean**2, _blurred(y * y) - y_mean**2
    covariance = _blurred(x * y) - x_mean * y_mean
    c1, c2 = (0.01 * RANGE) ** 2, (0.03 * RANGE) ** 2
    similar = (2 * x_mean * y_mean + c1) * (2 * covariance + c2)
    return (similar / ((x_mean**2 + y_mean**2 + c1) * (x_var + y_var + c2))).mean((1, 2, 3))


def sharpness(frames_BCHW: Tensor) -> Tensor:
    """Return the variance of each frame's Laplacian, taken of its brightness, [B]."""
    kernel = torch.tensor([[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
    return F.conv2d(luma(frames_BCHW).double(), kernel[None, None]).var((1, 2, 3))


def _blurred(x_BCHW: Tensor) -> Tensor:
    """Return weighted means over windows, [B, C, H - 10, W - 10]."""
    offsets = torch.arange(_WINDOW, dtype=x_BCHW.dtype) - _WINDOW // 2
    weights = torch.exp(-(offsets**2) / (2 * _SIGMA**2))
    weights = (weights / weights.sum())[None, None]
    flat = x_BCHW.flatten(0, 1)[:, None]
    flat = F.conv2d(F.conv2d(flat, weights[:, :, None]), weights[:, :, :, None])
    means_BCHW: Tensor = flat[:, 0].unflatten(0, x_BCHW.shape[:2])
    return means_BCHW


def bicubic(grey_BCHW: Tensor, previous_BCHW: Tensor, digit_B: Tensor) -> Tensor:
    """Return the camera's grey frames, enlarged by bicubic interpolation, as a stream without a network shows them."""
    size = previous_BCHW.shape[-2:]
    enlarged = F.interpolate(grey_BCHW, size=size, mode="bicubic", align_corners=False)
    return enlarged.clamp(-1, 1).expand(-1, 3, -1, -1)


@dataclass(frozen=True)
class UnseenClips:
    """Hold clips of people whom no network has seen, one for each photo.

    Attributes:
        frames_BTCHW: The true frames, [B, T, 3, 64, 64].
        digits_B: The digits, int64 [B].
    """

    frames_BTCHW: Tensor
    digits_B: Tensor

    @classmethod
    def of(cls, photos: Photos, *, num_photos: int, num_frames: int, seed: int = 0) -> "UnseenClips":
        """Make clips of the first photos, with consecutive frames."""
        numbers = range(min(num_photos, len(photos)))
        clips = ClipMaker(photos, seed).make(numbers, torch.arange(num_frames).expand(len(numbers), -1))
        return cls(clips.frames_BTCHW, clips.digits_B)


def drawn(clips: UnseenClips, draw: Draw) -> Tensor:
    """Draw all frames of clips in order, each with the drawn frame before it, rounded as shown: [B, T, 3, 64, 64].

    The first frame of a clip has no previous frame.
    """
    parts = []
    for frames_BTCHW, digits_B in zip(clips.frames_BTCHW.split(_BATCH), clips.digits_B.split(_BATCH), strict=True):
        previous = torch.zeros_like(frames_BTCHW[:, 0])
        shown = []
        for truth_BCHW in frames_BTCHW.unbind(1):
            previous = as_shown(draw(camera_frames(truth_BCHW), previous, digits_B))
            shown.append(previous)
        parts.append(torch.stack(shown, 1))
    return torch.cat(parts)


def measured(frames_BTCHW: Tensor, clips: UnseenClips, classifier: ResNet) -> FrameQuality:
    """Return the quality of drawn frames of clips."""
    frames, truth = frames_BTCHW.flatten(0, 1), clips.frames_BTCHW.flatten(0, 1)
    digits = clips.digits_B.repeat_interleave(clips.frames_BTCHW.shape[1])
    return FrameQuality(
        psnr_db=float(psnr(frames, truth).mean()),
        ssim=float(ssim(frames, truth).mean()),
        sharpness=float(sharpness(frames).mean() / sharpness(truth).mean()),
        accuracy=float(is_recognised(classifier, frames, digits).float().mean()),
    )
