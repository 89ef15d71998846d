"""Send answers to the page as JPEG, no faster than it shows them."""

import threading
from collections.abc import Callable
from io import BytesIO

from whet.errors import MissingExtra
from whet.streamer.drift.live import LiveDrift
from whet.streamer.frames import Image
from whet.streamer.http.header import Header
from whet.streamer.http.web_source import WebSource
from whet.streamer.loop import Answer

try:
    import PIL.Image
except ImportError as error:
    raise MissingExtra("pillow", "stream", "sending pictures to a page") from error

MOST_UNSHOWN = 2  # answers that are on their way to the page; later ones wait, and newer ones replace them
_QUALITY = 88  # of the JPEG


class PageOutlet:
    """Encode answers and send them, in the writer's thread.

    Args:
        source: The browser's frames, whose headers the answers repeat. None where the server plays its own source: then
            the page gets the frames that came in too.
        drift: Follows the answers that the model computed.
        send: Sends a binary message. Any thread may call it, and it never waits.
    """

    name = "the page"

    def __init__(self, source: WebSource | None, drift: LiveDrift, send: Callable[[bytes], None]) -> None:
        self._source, self._drift, self._send = source, drift, send
        self._changed = threading.Condition()
        self._num_unshown = 0
        self._is_closed = False

    def take(self, answer: Answer) -> None:
        """Send an answer once the page has shown those before."""
        with self._changed:
            self._changed.wait_for(lambda: self._num_unshown < MOST_UNSHOWN or self._is_closed)
        came = self._came(answer)
        if self._is_closed or came is None:
            return
        if self._source is None:
            self._send(came.pack() + as_jpeg(answer.frame.image))
        with self._changed:
            self._num_unshown += 1
        self._send(Header(answer.kind, came.sequence, came.captured_ms).pack() + as_jpeg(answer.image))
        if answer.kind == "computed":
            self._drift.add(answer.image, answer.frame.image)

    def _came(self, answer: Answer) -> Header | None:
        """Return the header of the frame that came in; None where the page has shown nothing for too long."""
        if self._source is not None:
            return self._source.header_of(answer.frame.index)
        return Header("input", answer.frame.index, answer.frame.time_s * 1e3)

    def shown(self) -> None:
        """Note that the page has shown one more answer."""
        with self._changed:
            self._num_unshown = max(0, self._num_unshown - 1)
            self._changed.notify_all()

    def close(self) -> None:
        """Send no more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


def as_jpeg(image: Image) -> bytes:
    file = BytesIO()
    PIL.Image.fromarray(image).save(file, "JPEG", quality=_QUALITY)
    return file.getvalue()
