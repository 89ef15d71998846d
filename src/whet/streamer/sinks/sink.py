"""Define what every sink of frames does."""

import threading
from abc import ABC, abstractmethod
from typing import Self

import numpy as np

from whet.streamer.frames import Image


class Sink(ABC):
    """Take the frames that a stream produces. A context manager.

    `close` finishes what was written, also after Ctrl-C. Any thread may call it. Frames that come later are refused.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.num_written = 0
        self._lock = threading.RLock()
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, image: Image, time_s: float) -> None:
        """Take a frame, uint8 RGB, [H, W, 3], with its presentation time in seconds.

        Raises:
            OutputError: It cannot be written.
            ValueError: It is no such picture, or the sink is closed.
        """
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or image.size == 0:
            raise ValueError(f"a frame is uint8 RGB, [H, W, 3]; got {image.dtype}, {list(image.shape)}")
        with self._lock:
            if self._is_closed:
                raise ValueError(f"{self.name} is closed and takes no more frames")
            self._write(image, time_s)
            self.num_written += 1

    def close(self) -> None:
        """Finish what was written. A second call does nothing.

        Raises:
            OutputError: It cannot be finished.
        """
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._finish()

    @abstractmethod
    def _write(self, image: Image, time_s: float) -> None:
        """Take a frame that has been checked."""

    @abstractmethod
    def _finish(self) -> None:
        """Finish what was written. It is called once."""


class NullSink(Sink):
    """Count frames, and keep none."""

    def __init__(self) -> None:
        super().__init__("null")

    def _write(self, image: Image, time_s: float) -> None:
        """Keep nothing."""

    def _finish(self) -> None:
        """Finish nothing."""
