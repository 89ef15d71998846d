"""Make clips of people whom signs-stream has not seen, with their true frames, and name the digits of drawn ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from whet.errors import OptionError
from whet.models.resnet import ResNet
from whet.workloads.signs_classifier import is_recognised, load_classifier
from whet.workloads.signs_data import SPLITS, ClipMaker, read_photos, split_photos


@dataclass(frozen=True)
class SignClip:
    """Hold the true frames of a hand, [T, 3, 64, 64] from 0 to 1, which the stream shall draw from small grey ones."""

    frames_TCHW: Tensor
    digit: int


def sign_clips(archive: Path, split: str, num_clips: int, num_frames: int) -> list[SignClip]:
    """Return clips of people of one split, the same ones each time.

    Args:
        archive: The file sign_digits.tar; see `whet.workloads.signs_data`.
        split: "train", "validation" or "test".
        num_clips: How many clips; fewer where there are fewer photos.
        num_frames: The consecutive frames of each.

    Raises:
        OptionError: There is no such split, or a number is below 1.
        TargetError: The archive cannot be read.
    """
    if split not in SPLITS:
        raise OptionError(f"a split is {', '.join(SPLITS)}; got {split!r}")
    if min(num_clips, num_frames) < 1:
        raise OptionError(f"at least one clip of at least one frame is needed; got {num_clips} of {num_frames}")
    photos = split_photos(read_photos(archive))[split]
    # Photos lie in the order in which they were taken. Evenly spaced ones show many people. From 16
    # clips on they show all digits, and few digits where their distance is near that of a person's photos, as for 8.
    places = torch.linspace(0, len(photos) - 1, min(num_clips, len(photos))).round().long().tolist()
    made = ClipMaker(photos).make(places, torch.arange(num_frames).expand(len(places), -1))
    frames_BTCHW = (made.frames_BTCHW.clamp(-1, 1) + 1) / 2
    return [SignClip(frames, int(digit)) for frames, digit in zip(frames_BTCHW, made.digits_B, strict=True)]


def recognised(frames: Sequence[Tensor], digit: int) -> list[float]:
    """Return for each frame, [3, 64, 64] from 0 to 1, 1 if the classifier recognises its digit, and 0 otherwise."""
    batch_BCHW = torch.stack(list(frames)).float() * 2 - 1
    return is_recognised(_classifier(), batch_BCHW, torch.full((len(frames),), digit)).double().tolist()


@cache
def _classifier() -> ResNet:
    return load_classifier()
