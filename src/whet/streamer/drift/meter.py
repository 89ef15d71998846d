"""Read pairs of an output and its input as a stream makes them, and keep a few numbers of each."""

import importlib.util
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from whet.measure.frames import (
    Frame,
    as_float,
    distance,
    flicker,
    histogram,
    input_flow,
    repetition,
    sharpness,
    warp_error,
)
from whet.measure.frames.flow import MIN_SIDE
from whet.measure.frames.movement import STILL
from whet.streamer.drift.loops import SIDE, Loop, find_loop
from whet.streamer.drift.measures import LAGS, MEASURES
from whet.streamer.drift.trend import Array, parts
from whet.streamer.frames import Image

_MOVEMENT_SIDE = 64  # movement is compared on frames that are reduced to at most this many pixels a side
_FLOW_SIDE = 256  # and optical flow on such
_THUMB_SIDE = 96
_NUM_FLOWS = 120  # over a stream: enough for both parts, and a few milliseconds each
_NUM_THUMBS = 12
_FLAT = 1e-6  # a standard deviation or a sharpness below this has no ratio


@dataclass(frozen=True)
class Thumbnail:
    """Hold a place of the film strip: output and input, uint8 [H, W, 3], reduced to at most 96 pixels a side."""

    index: int
    output: npt.NDArray[np.uint8]
    reference: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Series:
    """Hold what was measured of a stream, frame by frame.

    Attributes:
        values: The values of each measure of `MEASURES`, [frames]. NaN stands for frames that were not measured.
        moved: Whether the input moved within the last 8 frames, bool [frames].
        scene: Where the input's colours stand between those of the first part (0) and of the last (1), [frames].
        scene_change: The Hellinger distance of the input's colours in the first part and in the last.
        broken_from: The first frame whose output was not finite or left [0, 1]; None without one.
        loop: A loop of more than 8 frames that the output runs in while the input moves; None without one.
        alone: The frames that were compared with what the model makes of them alone, with what `appearance`
            says of both, in order.
    """

    values: Mapping[str, Array]
    moved: npt.NDArray[np.bool_]
    scene: Array
    scene_change: float
    broken_from: int | None = None
    thumbnails: tuple[Thumbnail, ...] = ()
    loop: Loop | None = None
    alone: tuple[tuple[int, Mapping[str, float]], ...] = ()

    @property
    def num_frames(self) -> int:
        return len(self.moved)


class DriftMeter:
    """Measure a stream as it goes.

    Frames are [H, W, C] or [H, W], uint8 or floating point in [0, 1]. An input of another size or with other channels
    than the output is fitted to it. Nothing is kept of a frame but its numbers, its histogram, the last 8 frames and a
    few thumbnails, so the memory does not depend on the number of frames but for some 5 KB each.

    Args:
        num_frames: The number of frames that are expected. It decides which frames become thumbnails, and at which the
            optical flow is computed: that takes milliseconds, so about 120 frames of a stream must do. Without OpenCV,
            or below 16 pixels a side, there is no warp error.
        alone: What the model makes of some frames alone, by their index, in the shape of the outputs.
    """

    def __init__(self, num_frames: int = 600, alone: Mapping[int, Image] | None = None) -> None:
        self._alone = alone or {}
        self._compared: list[tuple[int, Mapping[str, float]]] = []
        self._signatures: list[tuple[npt.NDArray[np.float16], npt.NDArray[np.float16]]] = []
        self._flow_every = max(1, num_frames // _NUM_FLOWS)
        self._thumb_every = max(1, math.ceil(num_frames / _NUM_THUMBS))
        self._has_opencv = importlib.util.find_spec("cv2") is not None
        self._recent: deque[tuple[Array, Array]] = deque(maxlen=LAGS + 1)
        self._before: tuple[Array, Array] | None = None
        self._values: dict[str, list[float]] = {one.name: [] for one in MEASURES}
        self._histograms: list[tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]] = []
        self._moved: list[bool] = []
        self._thumbnails: list[Thumbnail] = []
        self._broken_from: int | None = None

    def add(self, output: Frame, reference: Frame) -> None:
        """Measure one pair: what the stream made, and the input that it made it of.

        Raises:
            ValueError: The reference is no frame, or the output's shape is none of a frame or has changed.
        """
        shown = as_float(reference)
        made = self._finite(output)
        shown = fitted(shown, made.shape)
        if self._before is not None and self._before[0].shape != made.shape:
            raise ValueError(f"all outputs have one shape; got {made.shape} after {self._before[0].shape}")
        index = len(self._moved)
        self._look(made, shown)
        self._move(index, made, shown)
        if index in self._alone:
            single = as_float(self._alone[index])
            self._compared.append((index, appearance(made, single, (histogram(made), histogram(single)))))
        if index % self._thumb_every == 0:
            self._thumbnails.append(Thumbnail(index, _thumbnail(made), _thumbnail(shown)))
        self._before = (made, shown)

    def series(self) -> Series:
        """Return what has been measured so far.

        Raises:
            ValueError: There was no pair yet.
        """
        if not self._moved:
            raise ValueError("a series has at least one pair; none was added")
        outputs, references = (np.stack(all_of) for all_of in zip(*self._histograms, strict=True))
        size = parts(len(outputs))
        begin, end = references[:size].mean(axis=0), references[-size:].mean(axis=0)
        own = outputs[:size].mean(axis=0)
        apart = [distance(o, own) - distance(r, begin) for o, r in zip(outputs, references, strict=True)]
        self._values["own_colour"] = apart
        axis = (end - begin).ravel()
        power = float(axis @ axis)
        scene = ((references - begin).reshape(len(references), -1) @ axis) / power if power else np.zeros(len(apart))
        return Series(
            values={name: np.array(values, dtype=np.float64) for name, values in self._values.items()},
            moved=np.array(self._moved),
            scene=scene.astype(np.float64),
            scene_change=distance(begin, end),
            broken_from=self._broken_from,
            thumbnails=tuple(self._thumbnails),
            loop=find_loop(*(np.stack(all_of).astype(np.float32) for all_of in zip(*self._signatures, strict=True))),
            alone=tuple(self._compared),
        )

    def _finite(self, output: Frame) -> Array:
        """Return the output as float64 [H, W, C]; what is not finite or outside [0, 1] is noted and clipped."""
        array = np.asarray(output)
        try:
            return as_float(array)
        except ValueError:
            if array.ndim not in (2, 3) or array.size == 0 or array.dtype.kind != "f":
                raise
        if self._broken_from is None:
            self._broken_from = len(self._moved)
        return as_float(np.clip(np.nan_to_num(array, nan=0.0), 0, 1))

    def _look(self, made: Array, shown: Array) -> None:
        """Measure what one pair shows."""
        colours = histogram(made), histogram(shown)
        self._histograms.append((colours[0].astype(np.float32), colours[1].astype(np.float32)))
        for name, value in appearance(made, shown, colours).items():
            self._values[name].append(value)

    def _move(self, index: int, made: Array, shown: Array) -> None:
        """Measure how the pair follows those before it."""
        small = reduced(made, _MOVEMENT_SIDE), reduced(shown, _MOVEMENT_SIDE)
        flickers = flicker(self._recent[-1][0], small[0], self._recent[-1][1], small[1]) if self._recent else math.nan
        self._recent.append(small)
        self._signatures.append((_signature(small[0]), _signature(small[1])))
        repeats = repetition([o for o, _ in self._recent], [r for _, r in self._recent], still=STILL)
        self._values["flicker"].append(flickers)
        self._values["repetition"].append(repeats)
        self._moved.append(not math.isnan(repeats))
        error = math.nan
        if self._has_opencv and self._before is not None and index % self._flow_every == 0:
            then = [reduced(frame, _FLOW_SIDE) for frame in self._before]
            now = [reduced(frame, _FLOW_SIDE) for frame in (made, shown)]
            if min(now[0].shape[:2]) >= MIN_SIDE:
                flow = input_flow(then[1], now[1])
                error = warp_error(then[0], now[0], flow) - warp_error(then[1], now[1], flow)
        self._values["warp_error"].append(error)


def appearance(made: Array, shown: Array, colours: tuple[Array, Array]) -> dict[str, float]:
    """Return the measures of `MEASURES` that one pair shows by itself; NaN for ratios to a flat input.

    `made` is the output and `shown` the input, float64 [H, W, C]; `colours` are their histograms.
    """
    return {
        "colour": distance(*colours),
        "contrast": _ratio(float(made.std()), float(shown.std())),
        "sharpness": _ratio(sharpness(made), sharpness(shown)),
    }


def fitted(frame: Array, shape: tuple[int, ...]) -> Array:
    """Return a frame, float64 [H, W, C], with the size and the channels of `shape`.

    The size is changed linearly with antialiasing. Where the number of channels differs, each is their mean.
    """
    height, width, channels = shape
    if frame.shape[2] != channels:
        frame = np.repeat(frame.mean(axis=2, keepdims=True), channels, axis=2)
    if frame.shape[:2] == (height, width):
        return frame
    tensor = torch.from_numpy(np.ascontiguousarray(frame.transpose(2, 0, 1)))[None]
    sized = torch.nn.functional.interpolate(tensor, (height, width), mode="bilinear", antialias=True)
    fitting: Array = sized[0].numpy().transpose(1, 2, 0).clip(0, 1)
    return fitting


def reduced(frame: Array, side: int) -> Array:
    """Return a frame, [H, W, C], with its longer side at most `side` pixels long."""
    height, width, channels = frame.shape
    scale = side / max(height, width)
    if scale >= 1:
        return frame
    return fitted(frame, (max(1, round(height * scale)), max(1, round(width * scale)), channels))


def _signature(frame: Array) -> npt.NDArray[np.float16]:
    """Return a frame reduced to 16 × 16."""
    return fitted(frame, (SIDE, SIDE, frame.shape[2])).astype(np.float16)


def _ratio(value: float, reference: float) -> float:
    """Return value / reference; NaN where the reference is flat."""
    return value / reference if reference > _FLAT else math.nan


def _thumbnail(frame: Array) -> npt.NDArray[np.uint8]:
    """Return a frame as uint8 [H, W, 3], reduced to a thumbnail."""
    small = reduced(frame, _THUMB_SIDE)
    channels = small if small.shape[2] == 3 else np.repeat(small.mean(axis=2, keepdims=True), 3, axis=2)
    levels: npt.NDArray[np.uint8] = np.rint(channels * 255).astype(np.uint8)
    return levels
