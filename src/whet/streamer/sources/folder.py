"""Read the images of a folder as the frames of a stream."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy import typing as npt

from whet.errors import MissingExtra, TargetError, reason
from whet.streamer.frames import Fit, Image, Size, check_rate, check_size, placed
from whet.streamer.sources.source import Source

try:
    import PIL.Image
    import PIL.ImageOps
except ImportError as error:
    raise MissingExtra("pillow", "stream", "reading images") from error

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
"""The kinds of files that are read, in upper or lower case."""

_DEFAULT_RATE = 25.0


class ImageFolder(Source):
    """Read PNG, JPEG, WebP and BMP files in the natural order of their names: img2 comes before img10.

    Images are turned as their EXIF data say. Transparent parts lie over black. Grey becomes RGB, and 16 bits become 8.
    An image that cannot be read is skipped, leaves no gap in time, and is counted in `problems`. Pillow refuses images
    of more than 179 million pixels, which may be decompression bombs.

    Args:
        path: The folder. Hidden files, files of other kinds and folders in it are ignored.
        rate: The frames a second, which give the frames their times; 25, if not given.
        size: The height and width of the frames, in pixels. None keeps each image's own.

    Raises:
        MissingExtra: Pillow is not installed.
        OptionError: The size, the fit or the rate is out of its range.
        TargetError: There is no such folder, or it holds no image. A folder of which no image can be read is noticed
            when the first frame is read.
    """

    def __init__(self, path: Path, *, rate: float | None = None, size: Size | None = None, fit: Fit = "crop") -> None:
        check_size(size, fit)
        check_rate(rate)
        try:
            self._files = sorted(
                (
                    file
                    for file in path.iterdir()
                    if file.suffix.lower() in SUFFIXES and not file.name.startswith(".") and file.is_file()
                ),
                key=lambda file: natural_key(file.name),
            )
        except OSError as error:
            raise TargetError(f"{path} cannot be read as a folder: {error.strerror or error}; name another") from error
        if not self._files:
            raise TargetError(f"{path} holds no image; put {', '.join(SUFFIXES)} files into it, or name another folder")
        self._rate = rate or _DEFAULT_RATE
        super().__init__(str(path), rate=self._rate, num_frames=len(self._files))
        self._size, self._fit = size, fit
        self._num_tried = 0
        self._first_fault = ""

    def _next(self) -> tuple[Image, float]:
        while self._num_tried < len(self._files):
            file = self._files[self._num_tried]
            self._num_tried += 1
            try:
                image = read_image(file, self._size, self._fit, on_note=self._note)
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001 - Pillow's decoders raise errors of all kinds
                self.problems["images that cannot be read"] += 1
                self._first_fault = self._first_fault or f"{file.name}: {reason(error)}"
                continue
            return image, self._num_given / self._rate
        if self._num_given == 0:
            raise TargetError(
                f"none of the {len(self._files)} images of {self.name} can be read ({self._first_fault}); "
                "name another folder"
            )
        raise StopIteration

    def _release(self) -> None:
        self._files = []


def natural_key(name: str) -> tuple[list[str | int], str]:
    """Return a sort key by which runs of digits are compared as numbers: img2 comes before img10."""
    parts = re.split("([0-9]+)", name.casefold())  # texts at even positions, digits at odd ones
    return [int(part) if position % 2 else part for position, part in enumerate(parts)], name


def read_image(
    file: Path, size: Size | None = None, fit: Fit = "crop", *, on_note: Callable[[str], None] = lambda note: None
) -> Image:
    """Read one image as RGB, uint8, [H, W, 3], turned as its EXIF data say. Transparent parts lie over black.

    The other arguments are those of `fitted`.
    """
    with PIL.Image.open(file) as opened:
        turned = PIL.ImageOps.exif_transpose(opened)
    return fitted(_rgb(turned), size, fit, on_note=on_note)


def fitted(
    picture: PIL.Image.Image,
    size: Size | None,
    fit: Fit = "crop",
    *,
    on_note: Callable[[str], None] = lambda note: None,
) -> Image:
    """Return an RGB picture of Pillow as an image of a size, uint8, [H, W, 3].

    Args:
        size: The height and width to scale it to, in pixels; None keeps its own.
        on_note: Called with what another aspect does to it, as `Placement.note` says.
    """
    place = placed(picture.height, picture.width, size, fit)
    on_note(place.note)
    if picture.size != (place.width, place.height):
        picture = picture.resize((place.width, place.height), PIL.Image.Resampling.BILINEAR)
    return place.cut(np.array(picture))


def _rgb(picture: PIL.Image.Image) -> PIL.Image.Image:
    if picture.mode.startswith("I"):  # 16 bits, of which modes I;16 and I;16B hold just as many, and mode I more
        wide: npt.NDArray[np.int64] = np.clip(np.asarray(picture).astype(np.int64), 0, 65_535)
        return PIL.Image.fromarray(((wide + 128) // 257).astype(np.uint8)).convert("RGB")
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    over = picture.convert("RGBA")
    black = PIL.Image.new("RGBA", over.size, (0, 0, 0, 255))
    return PIL.Image.alpha_composite(black, over).convert("RGB")
