"""Make a clip that moves in a known way, for streams without a camera or a file."""

import numpy as np
import numpy.typing as npt

from whet.errors import OptionError
from whet.streamer.frames import Image, Size, check_rate, check_size
from whet.streamer.sources.source import Source

VELOCITY = (1, 2)
"""The rows and columns by which the background moves up and left between two frames, until it turns back."""

_DEFAULT_RATE = 30.0
_MAX_TRAVEL = 128  # pixels that the window moves over the background before it turns back
_NUM_WAVES = 4
_NUM_SHAPES = 3


class SyntheticClip(Source):
    """Show a window that moves over a coloured background, and shapes that move over it.

    The background is a smooth field of colours with a fine texture. The shapes are a disc, a ring and a square. Frames
    depend on the seed, the size and the index alone.

    Args:
        rate: The frames a second, which give the frames their times; 30, if not given.
        still: The first frame of a span in which nothing moves, and the frame after its last. All frames of the span
            equal its first one; the motion goes on after it.

    Raises:
        OptionError: An option is out of its range.
    """

    def __init__(
        self,
        num_frames: int = 600,
        *,
        size: Size = (64, 64),
        rate: float | None = None,
        seed: int = 0,
        still: tuple[int, int] | None = None,
    ) -> None:
        check_size(size, "stretch")
        check_rate(rate)
        if num_frames < 1:
            raise OptionError(f"a synthetic clip has at least one frame; got {num_frames}")
        if still is not None and not 0 <= still[0] < still[1]:
            raise OptionError(f"a still span ends after it begins, at frame 0 or later; got {still[0]} to {still[1]}")
        self._rate = rate or _DEFAULT_RATE
        super().__init__("synthetic", rate=self._rate, num_frames=num_frames)
        self._size = size
        self._still = still
        random = np.random.default_rng(seed)
        self._travel = (min(size[0], _MAX_TRAVEL), min(size[1], _MAX_TRAVEL))
        self._background = _background(random, (size[0] + self._travel[0], size[1] + self._travel[1]))
        side = max(3, min(size) // 4)
        self._masks = _masks(side)
        self._colours = random.integers(0, 256, (_NUM_SHAPES, 3), dtype=np.uint8)
        self._starts = random.integers(0, 1 << 16, (_NUM_SHAPES, 2))
        self._steps = random.choice([-3, -2, -1, 1, 2, 3], (_NUM_SHAPES, 2))

    def _next(self) -> tuple[Image, float]:
        if self._num_given == self.num_frames:
            raise StopIteration
        return self._drawn(self._phase(self._num_given)), self._num_given / self._rate

    def _phase(self, index: int) -> int:
        """Return how many steps of motion come before a frame."""
        if self._still is None or index <= self._still[0]:
            return index
        begin, end = self._still
        return max(begin, index - (end - 1 - begin))

    def _drawn(self, phase: int) -> Image:
        height, width = self._size
        top, left = (_to_and_fro(phase * step, span) for step, span in zip(VELOCITY, self._travel, strict=True))
        image = self._background[top : top + height, left : left + width].copy()
        for mask, colour, start, step in zip(self._masks, self._colours, self._starts, self._steps, strict=True):
            side = mask.shape[0]
            row = _to_and_fro(int(start[0] + phase * step[0]), max(0, height - side))
            column = _to_and_fro(int(start[1] + phase * step[1]), max(0, width - side))
            part = image[row : row + side, column : column + side]
            part[mask[: part.shape[0], : part.shape[1]]] = colour
        return image

    def _release(self) -> None:
        self._masks.clear()
        self._background = self._background[:0]


def _to_and_fro(position: int, span: int) -> int:
    """Fold a position on a line into 0 to `span`, as a ball that bounces at both ends."""
    if span == 0:
        return 0
    folded = position % (2 * span)
    return min(folded, 2 * span - folded)


def _background(random: np.random.Generator, size: Size) -> Image:
    """Return a smooth field of colours with a fine texture, uint8, [H, W, 3]."""
    rows = np.linspace(0, 1, size[0], dtype=np.float32)[:, None]
    columns = np.linspace(0, 1, size[1], dtype=np.float32)[None, :]
    field = np.empty((*size, 3), np.float32)
    for channel in range(3):
        total = np.zeros(size, np.float32)
        for _ in range(_NUM_WAVES):
            periods = random.integers(1, 4, 2)
            turn = random.random()
            total += np.sin(2 * np.pi * (periods[0] * rows + periods[1] * columns + turn), dtype=np.float32)
        field[..., channel] = 128 + 80 * total / _NUM_WAVES
    field += random.uniform(-24, 24, (*size, 1)).astype(np.float32)
    return np.clip(np.rint(field), 0, 255).astype(np.uint8)


def _masks(side: int) -> list[npt.NDArray[np.bool_]]:
    """Return which pixels of a square a disc, a ring and the square itself cover."""
    from_centre = np.arange(side) - (side - 1) / 2
    radius = np.hypot(from_centre[:, None], from_centre[None, :]) / (side / 2)
    return [radius <= 1, (radius <= 1) & (radius >= 0.6), np.ones((side, side), np.bool_)]
