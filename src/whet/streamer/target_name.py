"""Check the names of a stream's target, source and sink before anything heavy is imported."""

import difflib
import re
import stat
from pathlib import Path
from typing import Literal, NoReturn

from whet.errors import OptionError, TargetError
from whet.models.diffusion.names import is_diffusers_directory, is_frame_unet
from whet.workloads import BUILTIN, BUILTIN_STREAMS, BUILTIN_TRAINING
from whet.workloads.target_name import check_name

TUNED_FILE = "stream.json"
"""What whet tune writes into the directory of a tuned stream."""

SOURCES = "a video file, a folder of images, camera, camera:1, synthetic or synthetic:600"
"""What a source can be, for messages."""

SINKS = "a .mp4, .mkv or .webm file, a folder (frames/), or null"
"""What a sink can be, for messages."""

SourceKind = Literal["synthetic", "camera", "folder", "video"]


def is_tuned(directory: Path) -> bool:
    return (directory / TUNED_FILE).is_file()


def names_a_stream(target: str) -> bool:
    """Return whether a name alone shows that it is a stream's: built in, or the directory of one."""
    return target in BUILTIN_STREAMS or _is_stream(Path(target).expanduser())


def check_stream(target: str) -> None:
    """Raise TargetError where a target's name alone shows that there is no such stream. Nothing is built."""
    directory = Path(target).expanduser()
    if target in BUILTIN_STREAMS or _is_stream(directory):
        return
    if directory.is_dir():
        refuse_directory(directory)
    name = target.partition("?")[0]
    if ":" not in target or name in (*BUILTIN, *BUILTIN_TRAINING, *BUILTIN_STREAMS):
        reject(target)
    check_name(target)


def refuse_directory(directory: Path) -> NoReturn:
    """Raise TargetError for a directory without a diffusion model."""
    raise TargetError(f"{directory} holds no diffusion model: neither a folder unet, nor the config.json of a U-Net")


def reject(target: str) -> NoReturn:
    """Raise TargetError with a hint for a target that is neither built in, nor a directory, nor a function."""
    forms = "a directory of diffusers, a function that returns a whet.StreamWorkload, or " + ", ".join(BUILTIN_STREAMS)
    name = target.partition("?")[0]
    if name in BUILTIN_STREAMS:
        raise TargetError(f"{target!r}: give {name} alone; --device says where a stream runs")
    if name in (*BUILTIN, *BUILTIN_TRAINING):
        raise TargetError(f"{name} is no stream; whet stream takes {forms}")
    close = difflib.get_close_matches(name, BUILTIN_STREAMS, n=1)
    hint = f"did you mean {close[0]}? If not, " if close else ""
    raise TargetError(f"{target!r} is neither a directory nor FILE.py:FUNCTION; {hint}give {forms}")


def source_kind(text: str, *, rate: float | None = None) -> SourceKind:
    """Return the kind of a source by its name. See `whet.streamer.sources.open_source`.

    Raises:
        OptionError: An option does not fit the source.
        TargetError: There is no such source.
    """
    if not text:
        raise OptionError(f"a source needs a name; name {SOURCES}")
    kind, colon, detail = text.partition(":")
    if kind == "synthetic":
        if colon and not re.fullmatch("[0-9]{1,9}", detail):
            raise OptionError(f"synthetic:N takes a number of frames, such as synthetic:600; got {text!r}")
        return "synthetic"
    if kind == "camera":
        if colon and not re.fullmatch("[0-9]{1,3}|/.+", detail):
            raise OptionError(f"camera:N takes a camera's number or path, such as camera:1; got {text!r}")
        return "camera"
    try:
        mode = Path(text).stat().st_mode
    except (OSError, ValueError):
        raise TargetError(f"there is no source {text!r}; name {SOURCES}") from None
    if stat.S_ISDIR(mode):
        return "folder"
    if stat.S_ISCHR(mode):
        return "camera"
    if not stat.S_ISREG(mode):
        raise TargetError(f"{text} is no file that can be read as a video; name {SOURCES}")
    if rate is not None:
        raise OptionError(f"a video file has its own times and takes no rate; leave the rate of {rate:g} frames/s out")
    return "video"


def check_sink(text: str) -> None:
    """Raise OptionError where no sink is named so. Whether it can be written, opening it tells."""
    if not text:
        raise OptionError(f"an output needs a name; name {SINKS}")
    path = Path(text)
    if text != "null" and not text.endswith("/") and not path.is_dir() and not path.suffix:
        raise OptionError(f"there is no output {text!r}; name {SINKS}")


def _is_stream(directory: Path) -> bool:
    return directory.is_dir() and (is_tuned(directory) or is_diffusers_directory(directory) or is_frame_unet(directory))
