"""Write frames to a video file, with colours as BT.709 in the limited range, as the file says."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from whet.errors import MissingExtra, OptionError, OutputError, reason
from whet.files import check_file, hidden_name
from whet.streamer.frames import Image, Size, check_rate
from whet.streamer.sinks.sink import Sink

try:
    import av
    from av.container import OutputContainer
    from av.video.reformatter import ColorPrimaries, ColorRange, Colorspace, ColorTrc, Interpolation, VideoReformatter
except ImportError as error:
    raise MissingExtra("av", "stream", "writing a video") from error

_DEFAULT_RATE = 30.0
_INTERPOLATION = Interpolation.BILINEAR | Interpolation.FULL_CHR_H_INP | Interpolation.ACCURATE_RND
_CODEC_OPTIONS = {
    "libx264": {"preset": "veryfast", "crf": "18"},
    "mpeg4": {"qmin": "2", "qmax": "4"},
    "libvpx-vp9": {"deadline": "realtime", "cpu-used": "8", "crf": "24", "b": "0"},
}


@dataclass(frozen=True, slots=True)
class _Container:
    """Describe a kind of video file: FFmpeg's muxer, the codecs, best first, and the unit of its times in seconds."""

    muxer: str
    codecs: tuple[str, ...]
    time_base: Fraction


_FINE, _MATROSKA = Fraction(1, 90_000), Fraction(1, 1000)  # FFmpeg writes Matroska's and WebM's times in milliseconds
_MAX_TIME_BASE = {"mpeg4": Fraction(1, 60_000)}  # MPEG-4 Part 2 has 16 bits for the unit's denominator
_CONTAINERS = {
    ".mp4": _Container("mp4", ("libx264", "mpeg4"), _FINE),
    ".mkv": _Container("matroska", ("libx264", "mpeg4"), _MATROSKA),
    ".webm": _Container("webm", ("libvpx-vp9",), _MATROSKA),
}

SUFFIXES = tuple(_CONTAINERS)
"""The kinds of video files that can be written."""


class VideoSink(Sink):
    """Write a video file, as H.264 (.mp4, .mkv; MPEG-4 where FFmpeg has no libx264) or VP9 (.webm).

    The file is written beside its name, and takes its name in `close`, whole and playable. After an error nothing is
    left. Without a frame there is no file. The first frame fixes the picture's size, and later frames are scaled to
    it. The codecs need even sides: an odd picture gets one more row or column, which repeats its last one.

    Each frame keeps its time, to half of 1/90000 s in .mp4 and half a millisecond in .mkv and .webm (1/60000 s for
    MPEG-4). Times that do not increase are moved on by one such unit.

    Args:
        rate: The frames a second that the encoder plans with; 30, if not given. It does not change any times.
        codec: The encoder, "libx264", "mpeg4" or "libvpx-vp9"; the best one that is there, if not given.

    Raises:
        MissingExtra: PyAV is not installed.
        OptionError: The suffix is unknown, the rate is out of its range, or FFmpeg lacks the codec or it does not fit.
        OutputError: The file is there already, or cannot be written.
    """

    def __init__(
        self,
        path: Path,
        *,
        rate: float | None = None,
        overwrite: bool = False,
        codec: str | None = None,
        threads: int = 1,
    ) -> None:
        super().__init__(str(path))
        check_rate(rate)
        kind = _CONTAINERS.get(path.suffix.lower())
        if kind is None:
            raise OptionError(f"{path} has no suffix of a video that can be written; name a {_listed(SUFFIXES)} file")
        if codec is not None and codec not in kind.codecs:
            raise OptionError(f"{path} is encoded by {_listed(kind.codecs)}; got {codec!r}")
        self._codec = _available((codec,) if codec else kind.codecs, path)
        check_file(path)
        self._path, self._overwrite, self._threads = path, overwrite, threads
        self._refuse_existing()
        self._kind = kind
        self._time_base = max(kind.time_base, _MAX_TIME_BASE.get(self._codec, kind.time_base))
        self._rate = Fraction(rate or _DEFAULT_RATE).limit_denominator(1001)
        self._partial = hidden_name(path)
        self._container: OutputContainer | None = None
        self._size: Size | None = None
        self._reformatter = VideoReformatter()
        self._last_pts: int | None = None

    def _write(self, image: Image, time_s: float) -> None:
        with self._reported():
            if self._container is None:
                self._begin((image.shape[0], image.shape[1]))
            assert self._container is not None
            pts = round(Fraction(time_s) / self._time_base)
            if self._last_pts is not None:
                pts = max(pts, self._last_pts + 1)
            frame = self._converted(image)
            frame.pts, frame.time_base = pts, self._time_base
            self._container.mux(self._stream.encode(frame))
            self._last_pts = pts

    def _begin(self, size: Size) -> None:
        """Make the file, and an encoder for pictures of a size."""
        self._size = size
        container = av.open(str(self._partial.absolute()), "w", format=self._kind.muxer)
        stream = container.add_stream(self._codec, rate=self._rate, options=_CODEC_OPTIONS[self._codec])
        assert isinstance(stream, av.VideoStream)
        self._stream = stream
        context = stream.codec_context
        context.height, context.width = (side + side % 2 for side in size)
        context.pix_fmt = "yuv420p"
        context.time_base = self._time_base
        context.thread_count = self._threads
        context.colorspace = Colorspace.ITU709
        context.color_range = ColorRange.MPEG
        context.color_primaries = ColorPrimaries.BT709
        context.color_trc = ColorTrc.BT709
        container.start_encoding()
        self._container = container  # last, so that `close` finds a file that it can finish, or none

    def _converted(self, image: Image) -> av.VideoFrame:
        """Return a picture as the encoder takes it: of even sides, in YUV with half the resolution of colours."""
        assert self._size is not None
        height, width = self._size
        if image.shape[:2] != self._size:
            scaled = self._reformatter.reformat(
                _frame_of(image), width=width, height=height, interpolation=_INTERPOLATION, threads=1
            )
            image = np.asarray(scaled.to_ndarray(), np.uint8)
        if height % 2 or width % 2:
            image = np.pad(image, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        return self._reformatter.reformat(
            _frame_of(image),
            format="yuv420p",
            dst_colorspace=Colorspace.ITU709,
            dst_color_range=ColorRange.MPEG,
            interpolation=_INTERPOLATION,
            threads=1,
        )

    def _finish(self) -> None:
        if self._container is None:
            self._discard()
            return
        with self._reported():
            self._container.mux(self._stream.encode(None))
            self._container.close()
            with self._partial.open("rb+") as file:
                os.fsync(file.fileno())
            self._refuse_existing()
            self._partial.replace(self._path)

    def _refuse_existing(self) -> None:
        if not self._overwrite and os.path.lexists(self._path):
            raise OutputError(f"{self._path} exists already; name another file, or allow it with --overwrite")

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        """Report what fails inside the block as one error. The sink is then closed, and what was written is deleted."""
        try:
            yield
        except BaseException as error:
            if not self._is_closed and not isinstance(error, Exception):
                raise  # Ctrl-C between two frames: `close` finishes the file
            self._is_closed = True
            self._discard()
            if not isinstance(error, OSError | ValueError | OverflowError | av.FFmpegError):
                raise
            why = getattr(error, "strerror", None) or reason(error)
            raise OutputError(f"cannot write {self._path}: {why}; free some space, or name another place") from error

    def _discard(self) -> None:
        with contextlib.suppress(OSError, ValueError, av.FFmpegError):  # the same error again, as on a full disk
            if self._container is not None:
                self._container.close()
        self._partial.unlink(missing_ok=True)


def _frame_of(image: Image) -> av.VideoFrame:
    return av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")


def _available(codecs: tuple[str, ...], path: Path) -> str:
    """Return the first codec that FFmpeg can write."""
    for codec in codecs:
        with contextlib.suppress(av.codec.codec.UnknownCodecError):
            return av.codec.Codec(codec, "w").name
    raise OptionError(f"{path} cannot be written: FFmpeg has no encoder {_listed(codecs)} here; choose another suffix")


def _listed(names: tuple[str, ...]) -> str:
    """Return names as they are listed in a sentence: a, b or c."""
    return " or ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)
