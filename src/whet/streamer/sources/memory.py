"""Hand out frames that are in memory, or the frames of another source again and again."""

from collections.abc import Callable, Sequence

from whet.errors import TargetError
from whet.streamer.frames import Image
from whet.streamer.sources.source import Source

_RATE = 25.0


class MemoryClip(Source):
    """Hand out frames that are in memory, at `rate` frames per second."""

    def __init__(self, name: str, images: Sequence[Image], rate: float | None = None) -> None:
        self._rate = rate or _RATE
        super().__init__(name, rate=self._rate, num_frames=len(images))
        self._images = images

    def _next(self) -> tuple[Image, float]:
        if self._num_given == len(self._images):
            raise StopIteration
        return self._images[self._num_given], self._num_given / self._rate

    def _release(self) -> None:
        """Release nothing: the frames belong to whoever made the clip."""


class Endless(Source):
    """Hand out the frames of a source, which is opened again whenever it ends.

    Raises:
        TargetError: The source has no frames. This is noticed when the first frame is read.
    """

    def __init__(self, reopen: Callable[[], Source]) -> None:
        self._reopen = reopen
        self._source = reopen()
        self._rate = self._source.rate or _RATE
        super().__init__(f"{self._source.name}, repeated", rate=self._rate)
        self.notes = self._source.notes

    def _next(self) -> tuple[Image, float]:
        try:
            image = next(self._source).image
        except StopIteration:
            self._source.close()
            self._source = self._reopen()
            try:
                image = next(self._source).image
            except StopIteration:
                raise TargetError(f"{self._source.name} has no frames") from None
        return image, self._num_given / self._rate

    def _release(self) -> None:
        self._source.close()
