"""Turn what the command line names into a sink of frames."""

from pathlib import Path
from typing import TYPE_CHECKING

from whet.errors import OptionError
from whet.streamer.sinks.sink import NullSink, Sink

if TYPE_CHECKING:
    from whet.streamer.sinks.folder import ImageKind

KINDS = "a .mp4, .mkv or .webm file, a folder (frames/), or null"
"""What a sink can be, for messages."""


def open_sink(
    text: str,
    *,
    rate: float | None = None,
    overwrite: bool = False,
    images: "ImageKind" = "png",
    threads: int | None = None,
) -> Sink:
    """Open a sink by its name. Whatever can be checked before the first frame is checked here.

    `null` counts frames. A path that ends in / or is a folder is a folder of images. Everything else is a video file.

    Args:
        text: The name.
        rate: The frames a second that a video's encoder plans with. It does not change any times.
        overwrite: Replace a file, or use a folder that is not empty.
        images: The kind of images in a folder: "png" or "jpg".
        threads: The threads of a video's encoder; None for one, so that the model has the other cores.

    Raises:
        MissingExtra: The package that writes this kind of sink is not installed.
        OptionError: There is no such sink, or an option is out of its range.
        OutputError: The file or folder is there already, or cannot be written.
    """
    if text == "null":
        return NullSink()
    if not text:
        raise OptionError(f"an output needs a name; name {KINDS}")
    path = Path(text)
    if text.endswith("/") or path.is_dir():
        from whet.streamer.sinks.folder import ImageFolderSink

        return ImageFolderSink(path, images=images, overwrite=overwrite)
    if not path.suffix:
        raise OptionError(f"there is no output {text!r}; name {KINDS}")
    from whet.streamer.sinks.video import VideoSink

    return VideoSink(path, rate=rate, overwrite=overwrite, threads=threads or 1)
