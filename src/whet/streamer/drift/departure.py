"""Compare a stream with what its model makes of single frames, so that a departure shows from the first frame on.

A model that is given one frame alone, after a restart, has had no time to drift: what it makes of the frame differs
from the input by the model's style alone. What the stream makes of the same frame later should be alike.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from whet.streamer.drift.calibration import Thresholds
from whet.streamer.drift.measures import MEASURES
from whet.streamer.frames import Image, Size
from whet.streamer.model import FrameModel

LEAST: Mapping[str, float] = {"colour": 0.15, "contrast": math.log(1.25), "sharpness": math.log(2)}
"""The smallest departure of each measure that counts: a Hellinger distance, or the logarithm of a factor."""

_NUM_SAMPLES = 24
_NUM_OPENED = 8  # where the model is opened anew for each
_FIRST_SECOND = (0.08, 0.16, 0.28, 0.48, 0.72, 1.0)  # s: where a departure may begin before the first other sample
_RUN = 3  # samples in a row beyond the limit


@dataclass(frozen=True)
class Departure:
    """Say how a measure departs from what the model makes of single frames.

    Attributes:
        size: The median departure from `from_frame` on, with its sign: a distance, or the logarithm of a factor.
        limit: The largest that would be no drift.
    """

    name: str
    from_frame: int
    size: float
    limit: float


def sampled(num_frames: int, rate: float, *, is_cheap: bool) -> list[int]:
    """Return the frames at which a stream is compared: some in the first second, and others evenly over all.

    Args:
        rate: Its frames a second.
        is_cheap: Whether the model restarts without being opened anew.
    """
    even = np.linspace(0, num_frames - 1, _NUM_SAMPLES if is_cheap else _NUM_OPENED).round().astype(int).tolist()
    first = [round(moment * rate) for moment in (_FIRST_SECOND if is_cheap else _FIRST_SECOND[2::2])]
    return sorted({at for at in [*even, *first] if at < num_frames})


def alone(model: FrameModel, frames: Mapping[int, Image], size: Size) -> dict[int, Image]:
    """Return what a model makes of single frames, each after a restart. The model has restarted afterwards too.

    Frames of which it makes nothing finite, or nothing at all, are left out.
    """
    made: dict[int, Image] = {}
    known: dict[int, Image | None] = {}
    for index, frame in frames.items():
        if id(frame) not in known:  # a clip that is walked to and fro shows its frames again
            model.restart()
            output = model(model.as_input(frame))
            while output is None and model.in_flight:
                output = model.advance()
            known[id(frame)] = None if output is None else model.as_image(output, size)
        if (image := known[id(frame)]) is not None:
            made[index] = image
    model.restart()
    return made


def departures(found: Sequence[tuple[int, Mapping[str, float]]], thresholds: Thresholds) -> list[Departure]:
    """Return the measures that depart from what the model makes of single frames, for three samples in a row or more.

    Twice as much as frames usually differ from those shortly before them is no departure.

    Args:
        found: The frames that were compared, in order, with what `meter.appearance` says of the output beside what the
            model made of the frame alone.
    """
    departing = []
    for measure in MEASURES:
        name = measure.name
        if (least := LEAST.get(name)) is None:
            continue
        limit = max(least, 2 * thresholds.lateness.get(name, 0.0))
        values = measure.scale(np.array([measured[name] for _, measured in found]))
        beyond = [value > limit for value in np.abs(values)]
        starts = [i for i in range(len(beyond) - _RUN + 1) if all(beyond[i : i + _RUN])]
        if starts:
            later = values[starts[0] :]
            size = float(np.median(later[np.abs(later) > limit]))
            departing.append(Departure(name, found[starts[0]][0], size, limit))
    return departing
