"""Define what flows from sources to sinks: frames, and how a picture of any size takes the size that a model wants."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from whet.errors import OptionError, TargetError
from whet.ui.figures import percent

if TYPE_CHECKING:  # the command line reads names and limits here, and needs no NumPy for them
    import numpy as np
    import numpy.typing as npt

    Image: TypeAlias = npt.NDArray[np.uint8]
else:
    Image = Any
"""A picture: uint8 RGB, [H, W, 3], C-contiguous."""

Size: TypeAlias = tuple[int, int]
"""A height and a width in pixels."""

Fit: TypeAlias = Literal["crop", "pad", "stretch"]
"""How a picture takes another aspect: its centre is cut out, it gets black bars, or it is stretched."""

FITS: tuple[Fit, ...] = get_args(Fit)

MAX_SIDE = 16_384  # pixels; one frame then takes at most 805 MB
_MAX_EXCESS = 64  # a picture is scaled to at most as many times the pixels that are cut out of it


@dataclass(frozen=True, slots=True)
class Frame:
    """Hold one picture of a stream.

    Attributes:
        index: Its position in the source, counted from 0 over the frames that the source hands out.
        time_s: Its presentation time in seconds since the source's first frame. It never decreases.
    """

    image: Image
    index: int
    time_s: float


@dataclass(frozen=True, slots=True)
class Placement:
    """Say how a picture is scaled, and which part of the scaled picture is kept.

    Attributes:
        height: The rows of the scaled picture.
        width: Its columns.
        top: The first of its rows that is kept; below 0, so many black rows lie above it.
        left: The first of its columns that is kept; below 0, so many black columns lie before it.
        size: The rows and columns of the result.
        note: What another aspect does to the picture, as a sentence; "" where the aspect fits.
    """

    height: int
    width: int
    top: int
    left: int
    size: Size
    note: str = ""

    def cut(self, scaled: Image) -> Image:
        """Return the part of the scaled picture, [height, width, 3], that is kept, C-contiguous."""
        import numpy as np

        top, left = max(0, self.top), max(0, self.left)
        kept = scaled[top : top + self.size[0], left : left + self.size[1]]
        if kept.shape[:2] == self.size:
            return np.ascontiguousarray(kept)
        padded = np.zeros((*self.size, 3), np.uint8)
        padded[-min(0, self.top) :, -min(0, self.left) :][: kept.shape[0], : kept.shape[1]] = kept
        return padded


def placed(height: int, width: int, size: Size | None, fit: Fit, *, pixel_aspect: float = 1.0) -> Placement:
    """Compute how a picture takes a size.

    With "crop", the picture keeps its aspect: it is scaled until it covers the size, and its centre is cut out. The
    scaled picture has whole pixels, so that its aspect may be off by half a pixel. With "pad", it keeps its aspect too,
    and lies whole in the middle of a black frame. With "stretch", the whole picture is kept, and its aspect is not.

    Args:
        size: The size to take; None keeps the picture as it is.
        pixel_aspect: The width of one of the picture's pixels over its height.

    Raises:
        TargetError: The picture is so long and narrow that almost nothing of it would be kept.
    """
    if size is None:
        return Placement(height, width, 0, 0, (height, width))
    shown = width * pixel_aspect
    scales = size[0] / height, size[1] / shown
    note = _note(fit, (height, round(shown)), size, min(scales) / max(scales))
    if fit == "stretch":
        return Placement(*size, 0, 0, size, note)
    if fit == "pad":
        rows = max(1, min(size[0], round(height * min(scales))))
        columns = max(1, min(size[1], round(shown * min(scales))))
        return Placement(rows, columns, (rows - size[0]) // 2, (columns - size[1]) // 2, size, note)
    scale = max(scales)
    rows = max(size[0], round(height * scale))
    columns = max(size[1], round(shown * scale))
    if rows * columns > _MAX_EXCESS * size[0] * size[1]:
        raise TargetError(
            f"a picture of {width} x {height} pixels cannot be cropped to {size[1]} x {size[0]}: less than 1/"
            f"{_MAX_EXCESS} of it would be left; pad it or stretch it instead"
        )
    return Placement(rows, columns, (rows - size[0]) // 2, (columns - size[1]) // 2, size, note)


def _note(fit: Fit, shown: Size, size: Size, kept: float) -> str:
    """Say what a fit does to a picture of another aspect, of which a crop keeps the share `kept`."""
    if (1 - kept) * max(size) < 2:  # less than a pixel at each end
        return ""
    of = f"frames of {shown[1]} x {shown[0]} have another aspect than {size[1]} x {size[0]}"
    match fit:
        case "crop":
            return f"{of}: {percent(1 - kept)} of each is cut off; --fit pad or --fit stretch keeps it"
        case "pad":
            return f"{of}: black bars take {percent(1 - kept)} of each"
    return f"{of}: they are stretched by {1 / kept:.3g}"


def check_size(size: Size | None, fit: Fit) -> None:
    """Raise OptionError where a side is not between 1 and 16,384 pixels, or there is no such fit."""
    if size is not None and not all(1 <= side <= MAX_SIDE for side in size):
        raise OptionError(f"a frame's height and width are from 1 to {MAX_SIDE:,} pixels; got {size[0]} x {size[1]}")
    if fit not in FITS:
        raise OptionError(f"--fit is one of {', '.join(FITS)}; got {fit!r}")


def check_rate(rate: float | None) -> None:
    """Raise OptionError where a rate in frames a second is not above 0 and at most 1,000. None stands for no rate."""
    if rate is not None and not 0 < rate <= 1000:
        raise OptionError(f"a rate is above 0 and at most 1,000 frames/s; got {rate:g}")
