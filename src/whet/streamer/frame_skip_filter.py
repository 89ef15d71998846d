"""Skip frames of a still scene, by how like they are to the last frame that was computed.

The chance of a skip rises from 0 at a cosine similarity of `threshold` to 1 at equal frames, as in StreamDiffusion
(Kodaira et al., arXiv:2312.12491, section 3.4). Frames are compared as deviations from mid-grey, so that bright frames
are not alike for their brightness alone. The cap counts skips in a row.
"""

import random

import numpy as np
import numpy.typing as npt

from whet.errors import OptionError
from whet.streamer.frames import Image

_SIDE = 64  # frames are compared at about this many pixels a side


class FrameSkipFilter:
    """Decide which frames need not be computed.

    Args:
        threshold: The cosine similarity from which frames may be skipped, from 0 to below 1.
        most_in_a_row: After so many skips in a row, a frame is computed.

    Raises:
        OptionError: The threshold or the cap is out of its range.
    """

    def __init__(self, threshold: float = 0.98, most_in_a_row: int = 10, seed: int = 0) -> None:
        if not 0 <= threshold < 1 or most_in_a_row < 1:
            raise OptionError(
                f"a still scene begins at a similarity from 0 to below 1, and at least 1 frame is skipped in a row; "
                f"got {threshold} and {most_in_a_row}"
            )
        self._threshold, self._most_in_a_row = threshold, most_in_a_row
        self._random = random.Random(seed)
        self._computed: npt.NDArray[np.float32] | None = None
        self._in_a_row = 0

    def skips(self, image: Image) -> bool:
        """Return whether this frame is skipped. A frame that is not skipped becomes the one to compare with."""
        seen = _seen(image)
        if self._computed is not None and seen.shape == self._computed.shape and self._in_a_row < self._most_in_a_row:
            excess = (_cosine(seen, self._computed) - self._threshold) / (1 - self._threshold)
            if self._random.random() < excess:
                self._in_a_row += 1
                return True
        self._computed, self._in_a_row = seen, 0
        return False


def _seen(image: Image) -> npt.NDArray[np.float32]:
    """Return some of an image's pixels as deviations from mid-grey, [n]."""
    rows, columns = (max(1, length // _SIDE) for length in image.shape[:2])
    return image[::rows, ::columns].astype(np.float32).ravel() - np.float32(127.5)


def _cosine(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> float:
    """Return the cosine of the angle between two vectors; 1 where they are equal."""
    if np.array_equal(a, b):
        return 1.0
    return float(a @ b / max(float(a @ a) * float(b @ b), 1e-12) ** 0.5)
