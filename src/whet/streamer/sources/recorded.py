"""Read the first frames of a source that ends."""

from itertools import islice

from whet.errors import TargetError
from whet.streamer.frames import Image
from whet.streamer.sources.source import Source


def refuse_live(source: Source, what: str) -> None:
    """Raise TargetError where frames come at their own times, and no two runs would see the same ones.

    Args:
        what: Who asks, as "a drift test".
    """
    if source.is_live:
        raise TargetError(f"{source.name} is live; {what} takes a video, a folder or a synthetic clip")


def first_frames(source: Source, num_frames: int, what: str) -> list[Image]:
    """Return the first frames of a source, at most so many, and close it.

    Raises:
        TargetError: The source is live, has no frames, cannot be read, or these frames are damaged.
    """
    with source:
        refuse_live(source, what)
        frames = [frame.image for frame in islice(source, num_frames)]
    if not frames:
        raise TargetError(f"{source.name} has no frames")
    if source.damage:
        raise TargetError(f"{source.damage}; {what} takes whole frames: mend the file, or name another")
    return frames
