"""Hold the frames on which a stream's quality is judged."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from whet.errors import TargetError
from whet.streamer.frames import Image, Size
from whet.streamer.sources import open_source

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
    with open_source(text, size=size) as source:
        if source.is_live:
            raise TargetError(f"{source.name} is live; a stream is tuned on a video, a folder or a synthetic clip")
        frames: list[Image] = []
        for frame in source:
            frames.append(frame.image)
            if len(frames) == 2 * num_frames:
                break
    if len(frames) < 2:
        raise TargetError(f"{text} has {len(frames)} frames; a stream is tuned on at least 2")
    half = len(frames) // 2
    return Clips([Clip(frames[:half])], [Clip(frames[half:])])
