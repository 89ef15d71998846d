"""Measure how good drawn frames are: against the true ones, in sharpness, and by whether the digit is recognised.

Frames are float32 in [-1, 1]. Shape suffixes: B batch, C channels, H height, W width.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from whet.measure.frames import psnr, sharpness, ssim
from whet.models.resnet import ResNet
from whet.workloads.signs_classifier import is_recognised
from whet.workloads.signs_data import ClipMaker, Photos, camera_frames

from .signs_noise import as_shown

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
    """Draw all frames of clips in order, each with the drawn frame before it, rounded as shown: [B, T, 3, 64, 64]."""
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
    digits = clips.digits_B.repeat_interleave(clips.frames_BTCHW.shape[1])
    pairs = list(zip(_images(frames_BTCHW), _images(clips.frames_BTCHW), strict=True))
    sharp, true_sharp = (sum(map(sharpness, images)) for images in zip(*pairs, strict=True))
    return FrameQuality(
        psnr_db=float(np.mean([psnr(frame, truth) for frame, truth in pairs])),
        ssim=float(np.mean([ssim(frame, truth) for frame, truth in pairs])),
        sharpness=sharp / true_sharp,
        accuracy=float(is_recognised(classifier, frames_BTCHW.flatten(0, 1), digits).float().mean()),
    )


def _images(frames_BTCHW: Tensor) -> Iterator[NDArray[np.float64]]:
    """Yield all frames as images [H, W, 3] from 0 to 1."""
    for frame_CHW in frames_BTCHW.flatten(0, 1):
        yield (frame_CHW.permute(1, 2, 0).double().numpy() + 1) / 2
