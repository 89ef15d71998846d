"""Turn what the command line names into a source of frames."""

from pathlib import Path

from whet.streamer.frames import Fit, Size
from whet.streamer.sources.source import Source
from whet.streamer.sources.synthetic import SyntheticClip
from whet.streamer.target_name import source_kind

_SYNTHETIC_SIZE = (64, 64)


def open_source(
    text: str,
    *,
    size: Size | None = None,
    fit: Fit = "crop",
    rate: float | None = None,
    seed: int = 0,
    threads: int | None = None,
) -> Source:
    """Open a source by its name.

    `camera` is the first camera, `camera:1` the second, `camera:/dev/video1` one at its path. `synthetic` is a clip of
    600 frames, and `synthetic:90` one of 90. Everything else is the path of a video file, of a folder of images, or of
    a camera's device. A file with the name of another kind is read by a path such as ./camera.

    Args:
        size: The height and width of the frames, in pixels. None keeps those of the source. A synthetic clip
            then has 64 x 64.
        fit: How pictures take another aspect.
        rate: The frames a second of a folder or a synthetic clip, or what a camera is asked for. A video file has its
            own times, and takes none.
        seed: The seed of a synthetic clip.
        threads: The threads of a video's decoder; None leaves them to it.

    Raises:
        MissingExtra: The package that reads this kind of source is not installed.
        OptionError: An option is out of its range, or does not fit the source.
        TargetError: There is no such source, or it cannot be read.
    """
    kind, detail = source_kind(text, rate=rate), text.partition(":")[2]
    if kind == "synthetic":
        num_frames = int(detail) if detail else 600
        return SyntheticClip(num_frames, size=size or _SYNTHETIC_SIZE, rate=rate, seed=seed)
    if kind == "camera":
        from whet.streamer.sources.camera import Camera

        named = (detail or "0") if text.startswith("camera") else text  # a number, or the path of a device
        return Camera(int(named) if named.isdigit() else named, rate=rate, size=size, fit=fit)
    path = Path(text)
    if kind == "folder":
        from whet.streamer.sources.folder import ImageFolder

        return ImageFolder(path, rate=rate, size=size, fit=fit)
    from whet.streamer.sources.video import VideoFile

    return VideoFile(path, size=size, fit=fit, threads=threads)
