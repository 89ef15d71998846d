"""Run a stream's drift test: its model over frames that end where they began, and the verdict."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from whet.core.workload import StreamWorkload
from whet.errors import OptionError
from whet.streamer.drift.calibration import LATE, MIN_FRAMES, calibrate
from whet.streamer.drift.departure import alone, sampled
from whet.streamer.drift.meter import DriftMeter
from whet.streamer.drift.report import DriftReport, report
from whet.streamer.frames import Image, Size
from whet.streamer.sources import Source, first_frames
from whet.streamer.sources.memory import MemoryClip
from whet.streamer.stream import Stream, StreamOptions

T = TypeVar("T")

_RATE = 25.0  # frames a second, where the source does not say
FEWEST = 2 * (MIN_FRAMES + LATE)  # half of the frames are read from the source, and calibrate the thresholds


def drift_test(
    target: str | StreamWorkload,
    source: Callable[[Size], Source],
    num_frames: int,
    options: StreamOptions | None = None,
    *,
    on_answer: Callable[[], None] = lambda: None,
) -> DriftReport:
    """Run a model over so many frames, which are walked to and fro, and judge whether its output drifts from them.

    What real frames show without drift is calibrated on the same frames. The model's own feedback is what closes the
    loop. Frames of a still scene are not skipped, since a repeated frame is what the test looks for.

    Args:
        source: Opens the source for a size of frames. It must end; at most half of the frames are read from it.

    Raises:
        OptionError: There are fewer than 128 frames.
        TargetError: The source is a camera, or has too few frames for a calibration.
        WhetError: The model failed.
    """
    if num_frames < FEWEST:
        raise OptionError(f"a drift test takes at least {FEWEST} frames; got {num_frames}")
    frames: list[Image] = []
    names: list[str] = []

    def clip(size: Size) -> Source:
        opened = source(size)
        frames.extend(first_frames(opened, num_frames // 2, "a drift test"))
        names.append(opened.name)
        return MemoryClip(opened.name, list(there_and_back(frames, num_frames)), opened.rate)

    settings = dataclasses.replace(options or StreamOptions(), stillness=None, same_size=True)
    with Stream(target, clip, settings) as stream:
        thresholds = calibrate(frames, num_frames=num_frames, seed=settings.seed)
        meter = DriftMeter(num_frames, _alone(stream, list(there_and_back(frames, num_frames))))
        for answer in stream:
            # An output that is not finite ends the faithful part of a stream, whatever is shown in its place.
            broken = answer.kind == "not finite"
            meter.add(np.full(answer.image.shape, np.nan) if broken else answer.image, answer.frame.image)
            on_answer()
        subject = stream.opened.name
    return report(meter.series(), thresholds, subject=subject, source=names[0], seed=settings.seed)


def _alone(stream: Stream, frames: Sequence[Image]) -> dict[int, Image]:
    """Return what a stream's model makes of some of its frames alone, before the stream begins."""
    opened = stream.opened
    places = sampled(len(frames), stream.source.rate or _RATE, is_cheap=hasattr(opened.model.step, "reset"))
    return alone(opened.model, {index: frames[index] for index in places}, opened.size)


def there_and_back(clip: Sequence[T], num_frames: int) -> Iterator[T]:
    """Yield the frames of a clip forwards and backwards, so that the whole reads the same from both ends.

    No cut is added: a clip of more than half of the frames is walked half the way and back, and a shorter one is walked
    to and fro. A stream whose faithfulness depends on the scene is then the same at both ends, unless it drifts.

    Raises:
        ValueError: The clip is empty.
    """
    if not clip:
        raise ValueError("a clip has at least one frame")
    around = max(1, 2 * len(clip) - 2)
    for index in range(num_frames):
        place = min(index, num_frames - 1 - index) % around
        yield clip[min(place, around - place)]
