"""Measure whether an output moves as its input does: warp error along the input's optical flow."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import numpy.typing as npt

from whet.errors import MissingExtra
from whet.measure.frames.arrays import Frame, pair
from whet.measure.frames.texture import luminance

MIN_SIDE = 16  # pixels; OpenCV's DIS has patches of 8 and takes nothing smaller than 12
Field = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Flow:
    """Describe how each pixel moved between two frames.

    Attributes:
        backward: Where each pixel of the later frame was in the earlier one, less where it is, as (x, y) in pixels,
            float32 [H, W, 2].
        visible: Whether a pixel of the later frame was visible in the earlier one, bool [H, W].
    """

    backward: Field
    visible: npt.NDArray[np.bool_]


def input_flow(before: Frame, after: Frame) -> Flow:
    """Return the optical flow between two frames of an input, by OpenCV's DIS ("medium") on their luma.

    A pixel counts as hidden if its way back leaves the frame, if |f + b|² > 0.01 (|f|² + |b|²) + 0.5, or if it lies on
    a boundary of the movement: |∇b|² > 0.01 |b|² + 0.002. Here b is the backward flow, and f the forward flow, warped
    to the later frame.

    Sources: Kroeger et al., "Fast Optical Flow using Dense Inverse Search" (2016); Ruder, Dosovitskiy and Brox,
    "Artistic style transfer for videos" (2016), on occlusion.

    Raises:
        MissingExtra: OpenCV is not installed.
        ValueError: One is no frame, their shapes differ, or a side is shorter than 16 pixels.
    """
    cv2 = _opencv()
    first, second = pair(before, after)
    if min(first.shape[:2]) < MIN_SIDE:
        raise ValueError(
            f"optical flow takes frames of at least {MIN_SIDE}×{MIN_SIDE} pixels; got {first.shape[1]}×{first.shape[0]}"
        )
    old, new = (np.rint(luminance(frame) * 255).astype(np.uint8) for frame in (first, second))
    with _one_thread(cv2):
        search = cv2.DISOpticalFlow_create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
        forward: Field = search.calc(old, new, None)
        backward: Field = search.calc(new, old, None)
        forward_there = _warped(cv2, forward, backward)
    return Flow(backward, _is_inside(backward) & ~_is_hidden(forward_there, backward))


def warp_error(before: Frame, after: Frame, flow: Flow) -> float:
    """Return the mean square, over visible pixels, between an output's frame and the one before it, moved along a flow.

    Source: Lai et al., "Learning Blind Video Temporal Consistency" (2018).

    Args:
        flow: The flow of the *inputs* between the two frames, of the same size.

    Returns:
        The error on the scale of [0, 1]; NaN if no pixel is visible.

    Raises:
        MissingExtra: OpenCV is not installed.
        ValueError: One is no frame, or their shapes differ from each other or from the flow's.
    """
    cv2 = _opencv()
    first, second = pair(before, after)
    if first.shape[:2] != flow.visible.shape:
        raise ValueError(f"the flow is {flow.visible.shape} pixels, and the frames are {first.shape[:2]}")
    if not flow.visible.any():
        return math.nan
    with _one_thread(cv2):
        moved = _warped(cv2, first.astype(np.float32), flow.backward).reshape(second.shape)
    return float(np.square(second - moved)[flow.visible].mean())


def _opencv() -> ModuleType:
    try:
        import cv2
    except ImportError as error:
        raise MissingExtra("opencv-python-headless", "stream", "warp error") from error
    module: ModuleType = cv2
    return module


@contextmanager
def _one_thread(cv2: ModuleType) -> Iterator[None]:
    """Let OpenCV compute in the calling thread: its own threads would take cores from the model."""
    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        yield
    finally:
        cv2.setNumThreads(threads)


def _places(flow: Field) -> tuple[Field, Field]:
    """Return where each pixel comes from, as x and y, float32 [H, W] each."""
    rows, columns = np.indices(flow.shape[:2], dtype=np.float32)
    return columns + flow[:, :, 0], rows + flow[:, :, 1]


def _warped(cv2: ModuleType, image: Field, flow: Field) -> Field:
    """Return what `image` shows at the places that the flow points to, with linear interpolation."""
    warped: Field = cv2.remap(image, *_places(flow), cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    return warped


def _is_inside(flow: Field) -> npt.NDArray[np.bool_]:
    """Return which pixels come from within the frame, bool [H, W]."""
    height, width = flow.shape[:2]
    x, y = _places(flow)
    inside: npt.NDArray[np.bool_] = (x >= 0) & (x <= width - 1) & (y >= 0) & (y <= height - 1)
    return inside


def _is_hidden(forward: Field, backward: Field) -> npt.NDArray[np.bool_]:
    """Return which pixels disagree with the way back or lie on a boundary of the movement, bool [H, W]."""
    length = np.square(backward).sum(axis=2)
    apart = np.square(forward + backward).sum(axis=2)
    gradient = sum(np.square(np.gradient(backward[:, :, i], axis=axis)) for i in (0, 1) for axis in (0, 1))
    is_astray = apart > 0.01 * (np.square(forward).sum(axis=2) + length) + 0.5
    hidden: npt.NDArray[np.bool_] = is_astray | (gradient > 0.01 * length + 0.002)
    return hidden
