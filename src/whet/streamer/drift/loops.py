"""Find an output that runs in a loop of any length up to half of the stream, while its input moves on."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from whet.measure.frames.movement import STILL
from whet.streamer.drift.measures import LAGS

SIDE = 16  # pixels; frames are compared at this size
_MANY = 2048  # frames, from which on they are compared at half of it: the work grows with the square of their number
_REPEATS = 0.1  # an output that differs from an earlier one by so little of what the input does repeats it
_MOVES = 0.25  # the input has moved where it differs by so much of what it does over long times
_RUN = 16  # frames in a row for that, or a quarter of a long loop

Signatures = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Loop:
    """Hold where a loop begins again for the first time, and its length in frames."""

    from_frame: int
    num_frames: int


def find_loop(outputs: Signatures, references: Signatures) -> Loop | None:
    """Return the loop that begins again first; None without one.

    The output of frame t is compared with that of frame t - k, for all k above 8 up to half of the frames. (Shorter
    loops show in the measure of repetition.) It repeats itself if the difference is below a tenth of what the input has
    moved by from t - k to t. Frames between which the input hardly moved say nothing, so that neither a still input nor
    a periodic one is taken for a loop.

    Args:
        outputs: The outputs, reduced to 16 × 16, [frames, 16, 16, C], from 0 to 1.
        references: The inputs of the outputs, likewise.
    """
    num = len(outputs)
    if num > _MANY:
        outputs, references = _halved(outputs), _halved(references)
    made, shown = (frames.reshape(num, -1) for frames in (outputs, references))
    long_lags = range(max(LAGS, num // 8), num // 2 + 1, max(1, num // 32))
    usual = float(np.median(np.concatenate([_moved(shown, lag) for lag in long_lags]))) if long_lags else 0.0
    floor = max(2 * STILL, _MOVES * usual)
    found: Loop | None = None
    for lag in range(LAGS + 1, num // 2 + 1):
        moved, repeated = _moved(shown, lag), _moved(made, lag)
        at = np.flatnonzero(moved > floor)
        start = _first_run(repeated[at] < _REPEATS * moved[at], max(_RUN, lag // 4))
        if start is None:
            continue
        first = int(at[start])
        while first and repeated[first - 1] < _REPEATS * floor:  # the input had hardly moved there
            first -= 1
        if found is None or first + lag < found.from_frame:
            found = Loop(first + lag, lag)
    return found


def _moved(frames: Signatures, lag: int) -> npt.NDArray[np.float32]:
    """Return the mean absolute difference between each frame and the one so many frames before, [frames - lag]."""
    moved: npt.NDArray[np.float32] = np.abs(frames[lag:] - frames[:-lag]).mean(axis=1)
    return moved


def _first_run(holds: npt.NDArray[np.bool_], length: int) -> int | None:
    """Return where the first run of so many true values begins; None without one."""
    if len(holds) < length:
        return None
    sums = np.concatenate([[0], np.cumsum(holds)])
    starts = np.flatnonzero(sums[length:] - sums[:-length] == length)
    return int(starts[0]) if len(starts) else None


def _halved(frames: Signatures) -> Signatures:
    num, height, width, channels = frames.shape
    halved: Signatures = frames.reshape(num, height // 2, 2, width // 2, 2, channels).mean(axis=(2, 4))
    return halved
