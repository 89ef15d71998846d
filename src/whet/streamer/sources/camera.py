"""Read the newest frames of a camera."""

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from whet.errors import MissingExtra, TargetError, reason
from whet.streamer.frames import Fit, Image, Size, check_rate, check_size, placed
from whet.streamer.sources.source import Source

try:
    import cv2
except ImportError as error:
    raise MissingExtra("opencv-python-headless", "stream", "reading a camera") from error

STALL_S = 5.0
"""Seconds without a frame after which a camera counts as stalled."""


_RELEASE_S = 1.0  # seconds that `close` waits until the camera has given its last picture


class Capture(Protocol):
    """Describe what is read of OpenCV's VideoCapture."""

    def isOpened(self) -> bool:
        """Return whether the camera is open."""

    def read(self) -> tuple[bool, Any]:
        """Wait for a frame. Return whether there is one, and the frame: uint8, [H, W, 3] BGR or [H, W] grey."""

    def release(self) -> None:
        """Close the camera."""


class _Reader(threading.Thread):
    """Read a camera all the time, and keep its newest picture until somebody takes it.

    Args:
        capture: The camera. The thread releases it when it ends.
        clock: Returns seconds, from any origin.

    Attributes:
        fault: Why there are no more pictures; "" while there are.
    """

    def __init__(self, capture: Capture, clock: Callable[[], float], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.fault = ""
        self._capture = capture
        self._clock = clock
        self._arrival = threading.Condition()
        self._newest: tuple[npt.NDArray[np.uint8], float] | None = None
        self._is_stopped = False

    def stop(self) -> None:
        """Let the thread end after the picture that it waits for, and wake up who waits for one."""
        with self._arrival:
            self._is_stopped = True
            self._arrival.notify_all()

    def newest(self, timeout_s: float) -> tuple[npt.NDArray[np.uint8], float] | None:
        """Wait for a picture that nobody has taken yet, and take it.

        Returns:
            The picture, with the clock's reading at its arrival. None if there was none in time, or the thread ends.
        """
        with self._arrival:
            self._arrival.wait_for(lambda: self._newest is not None or self.fault or self._is_stopped, timeout_s)
            taken, self._newest = self._newest, None
            return taken

    def run(self) -> None:
        try:
            while not self._is_stopped:
                is_there, picture = self._capture.read()
                if not is_there:
                    self._end("gives no more frames")
                    return
                with self._arrival:
                    self._newest = picture, self._clock()
                    self._arrival.notify_all()
        except Exception as error:  # noqa: BLE001 - drivers raise errors of all kinds
            self._end(f"cannot be read: {reason(error)}")
        finally:
            self._capture.release()

    def _end(self, fault: str) -> None:
        with self._arrival:
            self.fault = fault
            self._arrival.notify_all()


class Camera(Source):
    """Hand out the newest frame of a camera. Frames that arrived before it, and that nobody took, are dropped.

    A thread reads the camera all the time, since a camera keeps a few old frames for a reader that is late.

    Args:
        device: The camera's number, counted from 0, or its path, such as /dev/video1.
        rate: The frames a second that the camera is asked for. The camera decides. None leaves it as it is.
        size: The height and width of the frames, in pixels. None keeps the camera's own.
        stall_s: Seconds without a frame after which iteration ends with an error.
        opener: Opens a device; OpenCV, if not given.
        clock: Returns seconds, from any origin. Frames are timed with it as they arrive.

    Raises:
        MissingExtra: OpenCV is not installed.
        OptionError: The size, the fit or the rate is out of its range.
        TargetError: The camera cannot be opened. Iteration raises it where the camera stalls or goes away.
    """

    def __init__(
        self,
        device: int | str = 0,
        *,
        rate: float | None = None,
        size: Size | None = None,
        fit: Fit = "crop",
        stall_s: float = STALL_S,
        opener: Callable[[int | str, float | None], Capture] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_size(size, fit)
        check_rate(rate)
        super().__init__(f"camera {device}", rate=rate, is_live=True)
        self._size, self._fit, self._stall_s = size, fit, stall_s
        capture = (opener or _open_device)(device, rate)
        if not capture.isOpened():
            capture.release()
            raise TargetError(
                f"{self.name} cannot be opened; check that it is connected, that no other program uses it, and that "
                "you may read it"
            )
        self._first_s: float | None = None
        self._reader = _Reader(capture, clock, self.name)
        self._reader.start()
        weakref.finalize(self, self._reader.stop).atexit = False  # for a camera that is left without `close`

    def close(self) -> None:
        """End the stream, and let go of the camera. A camera that hangs is let go of when it answers."""
        self._reader.stop()
        super().close()

    def _next(self) -> tuple[Image, float]:
        newest = self._reader.newest(self._stall_s)
        if self._closing.is_set():
            raise StopIteration
        if newest is None:
            why = self._reader.fault or f"gave no frame for {self._stall_s:g} s"
            raise TargetError(f"{self.name} {why}; check its connection, and start again")
        picture, arrived_s = newest
        if self._first_s is None:
            self._first_s = arrived_s
        return self._converted(picture), arrived_s - self._first_s

    def _converted(self, picture: npt.NDArray[np.uint8]) -> Image:
        """Return a picture of OpenCV, [H, W, 3] BGR or [H, W] grey, as RGB of the size that is wanted."""
        place = placed(picture.shape[0], picture.shape[1], self._size, self._fit)
        self._note(place.note)
        if picture.shape[:2] != (place.height, place.width):
            is_smaller = place.height * place.width < picture.shape[0] * picture.shape[1]
            way = cv2.INTER_AREA if is_smaller else cv2.INTER_LINEAR
            picture = np.asarray(cv2.resize(picture, (place.width, place.height), interpolation=way), np.uint8)
        code = cv2.COLOR_GRAY2RGB if picture.ndim == 2 else cv2.COLOR_BGR2RGB
        return place.cut(np.asarray(cv2.cvtColor(picture, code), np.uint8))

    def _release(self) -> None:
        self._reader.join(_RELEASE_S)


def _open_device(device: int | str, rate: float | None) -> Capture:
    """Open a camera with OpenCV, which keeps one frame. OpenCV's warnings are silenced meanwhile.

    The process's OpenCV computes in one thread from then on, so that it does not compete with the model.
    """
    cv2.setNumThreads(1)
    level = cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    try:
        capture = cv2.VideoCapture(device)
        if capture.isOpened():
            capture.set(cv2.CAP_PROP_BUFFERSIZE, 1)
            if rate is not None:
                capture.set(cv2.CAP_PROP_FPS, rate)
        return capture
    finally:
        cv2.utils.logging.setLogLevel(level)
