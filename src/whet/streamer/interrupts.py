"""Put off Ctrl-C and SIGTERM while a block runs that must come to its end, such as finishing a video file."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_MOST_PUT_OFF = 3  # the next one ends the block: a disk that hangs must not hold the process for ever


@contextmanager
def uninterrupted() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM in a list instead of raising KeyboardInterrupt, up to three of them.

    In other threads than the main one, which get no signals, nothing changes.
    """
    seen: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        if len(seen) > _MOST_PUT_OFF:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
