"""Take frames that a browser sends: the newest replaces one that nobody has read yet."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO

from whet.errors import MissingExtra, RequestError, reason
from whet.streamer.frames import Image, Size
from whet.streamer.http.header import Header
from whet.streamer.sources import Source
from whet.streamer.sources.folder import fitted

try:
    from PIL.JpegImagePlugin import JpegImageFile
except ImportError as error:
    raise MissingExtra("pillow", "stream", "reading a browser's frames") from error

MAX_BYTES = 4 * 2**20
"""The most bytes of one JPEG."""

MAX_PIXELS = 4096 * 4096
"""The most pixels of one JPEG. They are counted before it is decoded."""

_MOST_HANDED_OUT = 1024  # headers that are kept for the answers


@dataclass(frozen=True, slots=True)
class _Received:
    header: Header
    jpeg: memoryview


class WebSource(Source):
    """Hand out the newest frame that a browser sent, at the size that the model takes.

    `offer` takes frames, in any thread, and never waits. They are decoded in the thread that reads the source. A frame
    that cannot be used is counted in `problems`, and leaves no gap.

    Args:
        size: The height and width of the frames, in pixels. Of frames of another size, the centre is scaled to it.
        on_refused: Called with the sequence number of each frame that gets no answer, and why.
    """

    def __init__(self, size: Size, on_refused: Callable[[int, str], None]) -> None:
        super().__init__("the browser's camera", rate=None, is_live=True)
        self._size, self._on_refused = size, on_refused
        self._changed = threading.Condition()
        self._newest: _Received | None = None
        self._first_ms: float | None = None
        self._last_s = 0.0
        self._handed_out: dict[int, Header] = {}

    def offer(self, header: Header, jpeg: memoryview) -> None:
        if len(jpeg) > MAX_BYTES:
            self._refuse(header, "frames that are too large", f"a frame has at most {MAX_BYTES:,} bytes")
            return
        with self._changed:
            before, self._newest = self._newest, _Received(header, jpeg)
            self._changed.notify_all()
        if before is not None:
            self._refuse(before.header, "frames that a newer one replaced", "a newer frame has come")

    def header_of(self, index: int) -> Header | None:
        """Return the header of a frame that was handed out; None where it is no longer kept."""
        with self._changed:
            return self._handed_out.get(index)

    def close(self) -> None:
        """End the stream. A frame that waits is dropped."""
        with self._changed:
            self._closing.set()
            self._newest = None
            self._changed.notify_all()
        super().close()

    def _next(self) -> tuple[Image, float]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._newest is not None or self._closing.is_set())
                if self._newest is None or self._closing.is_set():
                    raise StopIteration
                received, self._newest = self._newest, None
            try:
                image = self._decoded(received.jpeg)
            except RequestError as error:
                self._refuse(received.header, "frames that are too large", str(error))
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001 - Pillow's decoder raises errors of all kinds
                self._refuse(received.header, "frames that cannot be decoded", f"a frame is damaged: {reason(error)}")
            else:
                return image, self._time_of(received.header)

    def _decoded(self, jpeg: memoryview) -> Image:
        """Return the picture of a JPEG, whose size is checked before it is decoded."""
        with JpegImageFile(BytesIO(jpeg)) as picture:
            if picture.width * picture.height > MAX_PIXELS:
                raise RequestError(
                    f"a frame has at most {MAX_PIXELS:,} pixels; got {picture.width:,} x {picture.height:,}"
                )
            if (picture.height, picture.width) != self._size:
                self.problems["frames of another size, which were scaled"] += 1
            return fitted(picture.convert("RGB"), self._size)

    def _time_of(self, header: Header) -> float:
        """Return a frame's time in seconds since the first, which never decreases, and keep its header."""
        with self._changed:
            if self._first_ms is None:
                self._first_ms = header.captured_ms
            self._last_s = max(self._last_s, (header.captured_ms - self._first_ms) / 1e3)
            self._handed_out[self._num_given] = header
            self._handed_out.pop(self._num_given - _MOST_HANDED_OUT, None)
            return self._last_s

    def _refuse(self, header: Header, problem: str, why: str) -> None:
        self.problems[problem] += 1
        self._on_refused(header.sequence, why)

    def _release(self) -> None:
        self._handed_out.clear()
