"""Write each frame as an image into a folder."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from whet.errors import MissingExtra, OptionError, OutputError
from whet.files import names_in, usable_directory, write_whole
from whet.streamer.frames import Image
from whet.streamer.sinks.sink import Sink

try:
    import PIL.Image
except ImportError as error:
    raise MissingExtra("pillow", "stream", "writing images") from error

ImageKind: TypeAlias = Literal["png", "jpg"]

_OPTIONS: dict[ImageKind, tuple[str, dict[str, Any]]] = {
    "png": ("PNG", {"compress_level": 1}),  # photographs are hardly smaller at higher levels, which take far longer
    "jpg": ("JPEG", {"quality": 95, "subsampling": 0}),
}
_OURS = re.compile(r"[0-9]{6,}\.(png|jpg)")


class ImageFolderSink(Sink):
    """Write frames as 000000.png, 000001.png, and so on. Each file appears whole or not at all.

    Args:
        path: The folder. It is made where it is missing.
        images: "png", which keeps every pixel, or "jpg", which is smaller.
        overwrite: Use a folder that holds files. Images in it that are named like those of this sink are deleted
            before the first frame is written; other files are left alone.

    Raises:
        MissingExtra: Pillow is not installed.
        OptionError: There is no such kind of image.
        OutputError: The folder holds files already, or cannot be written.
    """

    def __init__(self, path: Path, *, images: ImageKind = "png", overwrite: bool = False) -> None:
        super().__init__(str(path))
        if images not in get_args(ImageKind):
            raise OptionError(f"frames are written as png or jpg images; got {images!r}")
        names = names_in(path)
        if names and not overwrite:
            raise OutputError(f"{path} is not empty; name another folder, or allow it with --overwrite")
        self._path = usable_directory(path)
        self._old = [name for name in names if _OURS.fullmatch(name)]
        self._kind = images

    def _write(self, image: Image, time_s: float) -> None:
        for name in self._old:
            with contextlib.suppress(OSError):  # gone already; one that cannot be deleted cannot be replaced either
                (self._path / name).unlink()
        self._old = []
        name, options = _OPTIONS[self._kind]
        encoded = io.BytesIO()
        PIL.Image.fromarray(image).save(encoded, name, **options)
        write_whole(self._path / f"{self.num_written:06d}.{self._kind}", encoded.getvalue())

    def _finish(self) -> None:
        """Finish nothing: each image is complete."""
