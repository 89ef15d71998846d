"""Cameras: the newest frame, and what happens where a camera stalls or goes away. A made-up camera stands in."""

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from whet.errors import TargetError
from whet.streamer.sources.camera import Camera

WAIT_S = 60  # for threads of a busy machine; no test waits as long unless it fails


class MadeUpCamera:
    """Give pictures whose blue channel counts them, each when it is asked to."""

    def __init__(self, shape: tuple[int, ...] = (6, 8, 3), *, is_open: bool = True) -> None:
        self.shape = shape
        self.is_open = is_open
        self.asked = threading.Semaphore(0)  # one for each time that the reader wants a picture
        self.released = threading.Event()
        self._due = threading.Semaphore(0)
        self._answers: list[Callable[[], tuple[bool, Any]]] = []
        self._num_given = 0

    def isOpened(self) -> bool:
        return self.is_open

    def release(self) -> None:
        self.released.set()

    def read(self) -> tuple[bool, Any]:
        self.asked.release()
        self._due.acquire()
        return self._answers.pop(0)()

    def answer(self, answer: Callable[[], tuple[bool, Any]]) -> None:
        self._answers.append(answer)
        self._due.release()

    def give(self) -> None:
        """Give one picture, and return when the reader has kept it."""
        picture = np.zeros(self.shape, np.uint8)
        picture[..., 0] = self._num_given
        self._num_given += 1
        assert self.asked.acquire(timeout=WAIT_S)
        self.answer(lambda: (True, picture))
        assert self.asked.acquire(timeout=WAIT_S)  # the reader asks for the next one
        self.asked.release()


@pytest.fixture
def device() -> Iterator[MadeUpCamera]:
    made = MadeUpCamera()
    yield made
    made.answer(lambda: (False, None))  # lets the reader end
    assert made.released.wait(WAIT_S)


def camera_of(device: MadeUpCamera, **options: Any) -> Camera:
    return Camera(0, opener=lambda _number, _rate: device, **({"stall_s": WAIT_S} | options))


def test_the_newest_frame_is_handed_out_and_timed_at_its_arrival(device: MadeUpCamera) -> None:
    moments = iter([100.0, 100.5, 101.5, 103.0])
    with camera_of(device, clock=lambda: next(moments)) as camera:
        assert camera.is_live
        device.give()
        first = next(camera)
        for _ in range(3):
            device.give()
        newest = next(camera)
        assert (first.index, first.time_s, newest.index, newest.time_s) == (0, 0, 1, 3)
        assert first.image[0, 0].tolist() == [0, 0, 0]
        assert newest.image[0, 0].tolist() == [0, 0, 3]  # blue comes first in OpenCV, and last in RGB
        device.answer(lambda: (False, None))


def test_frames_take_their_size(device: MadeUpCamera) -> None:
    device.shape = (60, 120, 3)
    with camera_of(device, size=(20, 20)) as camera:
        device.give()
        device.give()
        image = next(camera).image
        assert image.shape == (20, 20, 3)
        assert image.flags.c_contiguous
        assert (image == [0, 0, 1]).all()
        device.answer(lambda: (False, None))


def test_a_grey_camera_gives_rgb() -> None:
    device = MadeUpCamera((4, 4))
    with camera_of(device) as camera:
        device.answer(lambda: (True, np.full((4, 4), 77, np.uint8)))
        assert (next(camera).image == np.full((4, 4, 3), 77)).all()
        device.answer(lambda: (False, None))
    assert device.released.wait(WAIT_S)


def test_a_camera_that_stalls(device: MadeUpCamera) -> None:
    camera = camera_of(device, stall_s=0.05)
    with pytest.raises(TargetError, match=r"camera 0 gave no frame for 0.05 s; check its connection"):
        next(camera)
    assert list(camera) == []


def test_a_camera_that_goes_away(device: MadeUpCamera) -> None:
    camera = camera_of(device)
    device.give()
    next(camera)
    device.answer(lambda: (False, None))
    with pytest.raises(TargetError, match="camera 0 gives no more frames"):
        next(camera)
    assert device.released.wait(WAIT_S)


def test_a_driver_that_raises(device: MadeUpCamera) -> None:
    def fail() -> tuple[bool, Any]:
        raise RuntimeError("the cable is loose")

    camera = camera_of(device)
    device.answer(fail)
    with pytest.raises(TargetError, match="camera 0 cannot be read: the cable is loose"):
        next(camera)


def test_a_camera_that_cannot_be_opened() -> None:
    device = MadeUpCamera(is_open=False)
    with pytest.raises(TargetError, match="camera 0 cannot be opened"):
        camera_of(device)
    assert device.released.is_set()
    with pytest.raises(TargetError, match="camera /dev/no-such-camera cannot be opened"):
        Camera("/dev/no-such-camera")


def test_close_wakes_up_who_waits_for_a_frame(device: MadeUpCamera) -> None:
    camera = camera_of(device)
    found: list[object] = []
    reader = threading.Thread(target=lambda: found.extend(camera))
    reader.start()
    assert device.asked.acquire(timeout=WAIT_S)
    camera.close()
    reader.join(WAIT_S)
    assert not reader.is_alive()
    assert found == []


def test_an_abandoned_camera_is_let_go_of(device: MadeUpCamera) -> None:
    camera = camera_of(device)
    device.give()
    next(camera)
    del camera
    gc.collect()
    device.answer(lambda: (True, np.zeros((6, 8, 3), np.uint8)))
    assert device.released.wait(WAIT_S)
