"""Turn what the command line names into a sink of frames."""

from pathlib import Path
from typing import TYPE_CHECKING

from whet.streamer.sinks.sink import NullSink, Sink
from whet.streamer.target_name import check_sink

if TYPE_CHECKING:
    from whet.streamer.sinks.folder import ImageKind


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
    check_sink(text)
    path = Path(text)
    if text.endswith("/") or path.is_dir():
        from whet.streamer.sinks.folder import ImageFolderSink

        return ImageFolderSink(path, images=images, overwrite=overwrite)
    from whet.streamer.sinks.video import VideoSink

    return VideoSink(path, rate=rate, overwrite=overwrite, threads=threads or 1)
