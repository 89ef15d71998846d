"""Hand out the frames of a recording at the times at which a camera would."""

import time
from collections.abc import Callable

from whet.streamer.frames import Image
from whet.streamer.sources.source import Source


class Paced(Source):
    """Hand out a source's frames no earlier than at their own times, counted from the first frame.

    Frames that fell due while nobody asked for one are handed out in order, without a wait. Closing it closes the
    source, and wakes it up where it waits.

    Args:
        source: The source. It must not have handed out a frame yet.
        clock: Returns seconds, from any origin.
        sleep: Waits for a number of seconds. It may return early.
    """

    def __init__(
        self,
        source: Source,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        super().__init__(source.name, rate=source.rate, is_live=True, num_frames=source.num_frames)
        self.problems, self.notes = source.problems, source.notes
        self._source = source
        self._clock = clock
        self._sleep = sleep or self._closing.wait
        self._began: float | None = None  # the clock's reading at the stream's time 0

    @property
    def damage(self) -> str:
        return self._source.damage

    def _next(self) -> tuple[Image, float]:
        frame = next(self._source)
        if self._began is None:
            self._began = self._clock()  # the first frame's time is 0
        while (left := self._began + frame.time_s - self._clock()) > 0:
            self._sleep(left)
            if self._closing.is_set():
                raise StopIteration
        return frame.image, frame.time_s

    def _release(self) -> None:
        self._source.close()


def paced(source: Source) -> Source:
    """Return a source that hands out a recording's frames as a camera would. A live source is returned as it is.

    The source must not have handed out a frame yet.
    """
    return source if source.is_live else Paced(source)
