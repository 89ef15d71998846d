"""Hold the frames on which a stream's quality is judged."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from whet.errors import TargetError
from whet.streamer.frames import Image, Size
from whet.streamer.model import as_image
from whet.streamer.sources import first_frames, open_source
from whet.workloads.signs_classifier import load_classifier
from whet.workloads.signs_clip import SignClip, recognised, sign_clips

TUNING = "the tuning of a stream"  # in messages
_SIGN_CLIPS = 16
_SIGN_FRAMES = 4

Judge = Callable[[Sequence[Image]], Sequence[float]]
"""Score a clip's answers, one number from 0 to 1 for each; higher is better."""


@dataclass(frozen=True)
class Clip:
    """Hold consecutive frames, and what is known about the right answers.

    Attributes:
        frames: What comes in, uint8 [H, W, 3] each.
        truth: What should come out; None where nobody knows.
        prompt: The prompt for these frames; None for the stream's own.
        judge: A score of the answers beside the likeness to the truth; None without one.
    """

    frames: Sequence[Image]
    truth: Sequence[Image] | None = None
    prompt: str | None = None
    judge: Judge | None = None


@dataclass(frozen=True)
class Clips:
    """Hold the clips that settings are chosen on, and other ones that the outcome is reported on.

    Attributes:
        chosen_on: For the search.
        reported_on: For the final figures: scenes that the search has not seen.
    """

    chosen_on: Sequence[Clip]
    reported_on: Sequence[Clip]


def clips_of_source(text: str, size: Size, num_frames: int) -> Clips:
    """Return two clips from a source: its first frames to choose on, and the ones after them to report on.

    Raises:
        TargetError: The source is live, or has too few frames.
    """
    frames = first_frames(open_source(text, size=size), 2 * num_frames, TUNING)
    if len(frames) < 2:
        raise TargetError(f"{text} has {len(frames)} frames; a stream is tuned on at least 2")
    half = len(frames) // 2
    return Clips([Clip(frames[:half])], [Clip(frames[half:])])


def clips_of_signs(archive: Path) -> Clips:
    """Return clips for signs-stream of people whom it has not seen: some to choose on, others to report on.

    Each has its digit as the prompt, and the classifier that is trained beside the stream as its judge.

    Args:
        archive: The file sign_digits.tar.

    Raises:
        TargetError: The archive cannot be read, or the classifier is not there.
    """
    load_classifier()  # before the work
    chosen, reported = (
        [_of_signs(clip) for clip in sign_clips(archive, split, _SIGN_CLIPS, _SIGN_FRAMES)]
        for split in ("validation", "test")
    )
    return Clips(chosen, reported)


def _of_signs(clip: SignClip) -> Clip:
    images = [image for frame in clip.frames_TCHW if (image := as_image(frame)) is not None]

    def judge(answers: Sequence[Image]) -> Sequence[float]:
        return recognised([torch.from_numpy(answer).permute(2, 0, 1) / 255 for answer in answers], clip.digit)

    return Clip(images, images, str(clip.digit), judge)
