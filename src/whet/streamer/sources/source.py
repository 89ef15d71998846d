"""Define what every source of frames does, and read the first frames of one that ends."""

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Self

from whet.errors import TargetError
from whet.streamer.frames import Frame, Image

_MOST_NOTES = 4  # where each frame has another size


class Source(ABC, Iterator[Frame]):
    """Hand out the frames of a stream, one after the other: an iterator and a context manager.

    The frames are read in the thread that asks for them. `close` may be called from any thread; iteration then ends.
    The source closes itself after its last frame and after an error.

    Attributes:
        name: What the source is called in reports.
        rate: Its frames a second; None where nothing says it.
        is_live: Whether frames come at their own times, as from a camera, and are lost where nobody takes them.
        num_frames: The frames that it will hand out, for progress bars; None where nothing says it.
        problems: What was skipped or mended, with how often.
        notes: What else is to be known of the frames, in sentences.
    """

    def __init__(self, name: str, *, rate: float | None, is_live: bool = False, num_frames: int | None = None) -> None:
        self.name = name
        self.rate = rate
        self.is_live = is_live
        self.num_frames = num_frames
        self.problems: Counter[str] = Counter()
        self.notes: list[str] = []
        self._num_given = 0
        self._closing = threading.Event()
        self._lock = threading.RLock()  # held while a frame is read: what is being read from is not closed
        self._is_released = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __next__(self) -> Frame:
        with self._lock:
            if self._closing.is_set():
                raise StopIteration
            try:
                image, time_s = self._next()
            except BaseException:  # the last frame was read, or an error or Ctrl-C ends the stream
                self.close()
                raise
            frame = Frame(image, self._num_given, time_s)
            self._num_given += 1
            return frame

    @property
    def damage(self) -> str:
        """Return how what was read so far is damaged, in a sentence that names the frame; "" where it is not."""
        return ""

    def close(self) -> None:
        """End the stream and release what it reads from. It waits for a frame that is being read at the moment."""
        self._closing.set()
        with self._lock:
            if not self._is_released:
                self._is_released = True
                self._release()

    def _note(self, note: str) -> None:
        """Add a note, once; an empty one says nothing."""
        if note and note not in self.notes and len(self.notes) < _MOST_NOTES:
            self.notes.append(note)

    @abstractmethod
    def _next(self) -> tuple[Image, float]:
        """Return the next picture, and its time in seconds since the first one.

        Raises:
            StopIteration: There is none.
        """

    @abstractmethod
    def _release(self) -> None:
        """Release what the source reads from. It is called once."""


def refuse_live(source: Source, what: str) -> None:
    """Raise TargetError where frames come at their own times, and no two runs would see the same ones.

    `what` says who asks, as "a drift test".
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
