"""Turn colour frames into what a grey camera of fewer pixels sees."""

import torch
import torch.nn.functional as F
from torch import Tensor

LUMA = (0.299, 0.587, 0.114)
"""The weights of red, green and blue in brightness, by ITU-R BT.601."""


def luma(frames: Tensor) -> Tensor:
    """Return the brightness of colour frames, [..., 1, H, W] of [..., 3, H, W], in the same range."""
    weights = torch.tensor(LUMA, dtype=frames.dtype, device=frames.device)
    return (frames * weights[:, None, None]).sum(-3, keepdim=True)


def seen_in_grey(frames: Tensor, factor: int) -> Tensor:
    """Return what a grey camera of fewer pixels sees of colour frames [..., 3, H, W], in the same range.

    It is [..., 1, H / factor, W / factor]: each of its pixels averages `factor` pixels of a frame each way.
    """
    grey = F.avg_pool2d(luma(frames).flatten(0, -4), factor)
    return grey.reshape(*frames.shape[:-3], 1, *grey.shape[-2:])
