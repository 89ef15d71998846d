"""Read the frames of a video file.

Only PyAV's decoder threads within a picture are used. With a thread for each picture, an error in one packet loses the
pictures that other threads were decoding beside it (seen with PyAV 18.1).

FFmpeg scales and converts in one pass. Colours follow the matrix and the range that the file names. Where it names no
matrix, they follow BT.601, as FFmpeg does. High dynamic range is not tone-mapped.
"""

import re
import weakref
from collections import Counter, deque
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from whet.errors import MissingExtra, TargetError, reason
from whet.streamer.frames import Fit, Image, Size, check_size, placed
from whet.streamer.sources.damage import Damage, logged
from whet.streamer.sources.source import Source
from whet.streamer.sources.timeline import Timeline

try:
    import av
    from av.container import InputContainer
    from av.sidedata.sidedata import Type
    from av.stream import Disposition
    from av.video.reformatter import Interpolation, VideoReformatter
except ImportError as error:
    raise MissingExtra("av", "stream", "reading a video") from error

_MAX_ERRORS = 16  # a file that cannot be read on as often, with no packet between, is taken to end there
# Chroma is computed for each column of the result. By default, FFmpeg computes it for every other one, which costs
# 6 dB of a picture that is made a quarter as wide. Rounding is to nearest instead of down.
_INTERPOLATION = Interpolation.BILINEAR | Interpolation.FULL_CHR_H_INT | Interpolation.ACCURATE_RND


class VideoFile(Source):
    """Read a video file. Sound is ignored. Of several video streams, FFmpeg's choice of the best one is read.

    A display matrix (a rotation by 90, 180 or 270 degrees, a flip) is applied. Packets that cannot be decoded are
    skipped and counted in `problems`. Of packets with missing parts, the decoder shows what it can, and they are
    counted as well. `damage` names the first frame that is damaged, whatever the decoder made of it, and says where the
    file is cut off.

    Args:
        size: The height and width of the frames, in pixels. None keeps what the file has, which may change within it.
        fit: How pictures take another aspect. Pixels that are not square count with the aspect that they are shown in.
        threads: The decoder's threads; None leaves them to it.

    Raises:
        MissingExtra: PyAV is not installed.
        OptionError: The size or the fit is out of its range.
        TargetError: There is no such file, or it holds no video that can be decoded. A file in which no frame can be
            decoded is noticed when the first frame is read.
    """

    def __init__(self, path: Path, *, size: Size | None = None, fit: Fit = "crop", threads: int | None = None) -> None:
        check_size(size, fit)
        self._container = _opened(path)
        try:
            self._stream = _best_stream(self._container, path)
        except BaseException:
            self._container.close()
            raise
        self._stream.thread_type = "SLICE"
        if threads is not None:
            self._stream.codec_context.thread_count = threads
        rate = self._stream.guessed_rate
        super().__init__(str(path), rate=float(rate) if rate else None, num_frames=self._stream.frames or None)
        self._size, self._fit = size, fit
        self._timeline = Timeline(rate or None, self.problems)
        self._damage = Damage(self.name)
        self._loggers = frozenset({self._container.format.name, self._stream.codec_context.codec.name})
        self._end_s = 0.0  # of what was demuxed
        self._packets = _packets(self._container, self._stream, self.problems, self._damage)
        self._decoded: deque[av.VideoFrame] = deque()
        self._reformatter = VideoReformatter()
        weakref.finalize(self, self._container.close).atexit = False  # for a source that is left without `close`

    def _next(self) -> tuple[Image, float]:
        while True:
            while not self._decoded:
                self._decode_packet()
            frame = self._decoded.popleft()
            try:
                image = self._converted(frame)
            except (av.FFmpegError, ValueError):  # a picture of a kind that FFmpeg cannot convert
                self.problems["frames that cannot be converted"] += 1
                continue
            timestamp = None
            if frame.pts is not None and self._stream.time_base is not None:
                timestamp = frame.pts * self._stream.time_base
            self._damage.given(timestamp)
            return image, self._timeline.time_s(timestamp)

    def _decode_packet(self) -> None:
        try:
            packet = next(self._packets)
        except StopIteration:
            if self._num_given == 0:
                what = ", ".join(f"{count} {name}" for name, count in self.problems.items()) or "it has no packets"
                raise TargetError(f"no frame of {self.name} can be decoded: {what}; name another file") from None
            raise
        self._damage.packet(packet, None if packet is None else self._seconds(packet.dts))
        if packet is not None and packet.is_corrupt:
            self.problems["packets with missing parts"] += 1
        why = ""
        with logged(self._loggers) as messages:
            try:
                self._decoded.extend(self._stream.decode(packet))
            except av.FFmpegError:
                self.problems["packets that cannot be decoded"] += 1
                why = "a packet cannot be decoded"
        if why := messages[0] if messages else why:
            self._damage.note(why, None if packet is None else self._seconds(packet.pts))
        if packet is None:
            self._damage.ended(self._num_given + len(self._decoded), self._end_s, self._declared_s(), self._period_s)
        elif packet.pts is not None:
            self._end_s = max(self._end_s, float(self._seconds(packet.pts + (packet.duration or 0)) or 0))

    @property
    def damage(self) -> str:
        return self._damage.sentence

    @property
    def _period_s(self) -> float:
        return 1 / self.rate if self.rate else 0.0

    def _seconds(self, ticks: int | None) -> Fraction | None:
        return None if ticks is None or self._stream.time_base is None else ticks * self._stream.time_base

    def _declared_s(self) -> float | None:
        """Return when the video ends by what the file says; None where it does not."""
        if found := re.fullmatch(r"(\d+):(\d+):([\d.]+)", self._stream.metadata.get("DURATION", "")):
            return int(found[1]) * 3600 + int(found[2]) * 60 + float(found[3])
        duration = self._seconds(self._stream.duration)
        return None if duration is None else float(duration)

    def _converted(self, frame: av.VideoFrame) -> Image:
        turns, is_mirrored = orientation(frame)
        aspect = float(self._stream.sample_aspect_ratio or 1)
        if turns % 2:  # the size is that of the turned picture
            place = placed(frame.width, frame.height, self._size, self._fit, pixel_aspect=1 / aspect)
            height, width = place.width, place.height
        else:
            place = placed(frame.height, frame.width, self._size, self._fit, pixel_aspect=aspect)
            height, width = place.height, place.width
        self._note(place.note)
        scaled = self._reformatter.reformat(
            frame, width=width, height=height, format="rgb24", interpolation=_INTERPOLATION, threads=1
        )
        shown = np.asarray(scaled.to_ndarray(), np.uint8)
        return place.cut(np.rot90(shown[:, ::-1] if is_mirrored else shown, turns))

    def _release(self) -> None:
        self._decoded.clear()
        self._container.close()


def orientation(frame: av.VideoFrame) -> tuple[int, bool]:
    """Return how a decoded picture is turned before it is shown.

    Returns:
        The number of counterclockwise quarter turns, 0 to 3, and whether the picture is mirrored left to right before
        them. An angle between quarter turns counts as the nearest one.

    Source: FFmpeg's display matrix (libavutil/display.h): a point (x, y) of the picture, with y downwards, is shown at
    (a·x + c·y, b·x + d·y), where the matrix holds a, b, -, c, d as its first elements.
    """
    side_data: Any = frame.side_data  # iteration over it yields the data, not their types
    matrix = next((data for data in side_data if data.type is Type.DISPLAYMATRIX), None)
    if matrix is None:
        return 0, False
    a, b, _, c, d = (int(element) for element in np.frombuffer(matrix, np.int32)[:5])
    is_mirrored = a * d - b * c < 0
    if is_mirrored:  # the matrix is a mirror followed by a turn; without the mirror, the x axis is the other way round
        a, b = -a, -b
    if abs(a) >= abs(b):
        return (0 if a >= 0 else 2), is_mirrored
    return (1 if b < 0 else 3), is_mirrored


def _opened(path: Path) -> InputContainer:
    try:
        if path.is_dir():
            raise TargetError(f"{path} is a directory; name a video file")
        if path.stat().st_size == 0:
            raise TargetError(f"{path} is an empty file; name a video file")
        # An absolute path cannot be taken for a protocol. A playlist may name files, but nothing in a network.
        container = av.open(str(path.absolute()), "r", options={"protocol_whitelist": "file"})
    except FileNotFoundError:
        raise TargetError(f"there is no file {path}; name a video file") from None
    except (OSError, ValueError, av.FFmpegError) as error:
        why = getattr(error, "strerror", None) or reason(error)
        raise TargetError(f"{path} cannot be read as a video: {why}; name another file") from error
    if container.format.name == "tty":  # FFmpeg draws texts as pictures
        container.close()
        raise TargetError(f"{path} is a text, not a video; name another file")
    return container


def _best_stream(container: InputContainer, path: Path) -> av.VideoStream:
    """Return the video stream to read. Cover pictures of a recording do not count."""
    videos = [stream for stream in container.streams.video if not stream.disposition & Disposition.attached_pic]
    if not videos:
        raise TargetError(f"{path} holds no video; name another file")
    best = container.streams.best("video")
    stream = best if best in videos else videos[0]
    assert isinstance(stream, av.VideoStream)
    if stream.codec_context is None:
        raise TargetError(f"{path} cannot be decoded: FFmpeg does not know its codec; convert the file to H.264")
    return stream


def _packets(
    container: InputContainer, stream: av.VideoStream, problems: Counter[str], damage: Damage
) -> Iterator["av.Packet[av.VideoStream] | None"]:
    """Yield the packets of a stream, and None at its end, which makes the decoder hand out what it holds back."""
    names = frozenset({container.format.name})
    num_errors = 0
    demuxed = container.demux(stream)
    while num_errors < _MAX_ERRORS:
        try:
            with logged(names) as messages:
                packet = next(demuxed, None)
            for message in messages:
                damage.note(message, None)
            if packet is None:
                break
            if packet.size:  # the last packet is empty, and stands for the end
                num_errors = 0
                yield packet
        except OSError as error:
            problems["errors while reading the file"] += 1
            damage.note(reason(error), None)
            break
        except av.FFmpegError as error:
            problems["errors while reading the file"] += 1
            damage.note(reason(error), None)
            num_errors += 1
            demuxed = container.demux(stream)
    yield None
