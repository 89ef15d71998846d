"""Notice that a video is damaged, and say at which frame: FFmpeg mends what it can and tells its log alone."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import TYPE_CHECKING

from whet.errors import MissingExtra

try:
    from av import logging
except ImportError as error:
    raise MissingExtra("av", "stream", "reading a video") from error

if TYPE_CHECKING:
    from av import Packet, VideoStream

# What sound files with odd features log as errors: unusual lists of reference pictures, metadata of other tools.
_HARMLESS = ("mmco", "sei", "number of reference frames", "co located", "illegal short term", "timescale not set")
# What is logged where pictures refer to others that are not there: a recording may begin anywhere, and so may a part of
# one that was joined to another.
_REFERENCES = ("reference picture", "ref with poc", "rps", "non-existing", "no frame", "pps", "sps", "slice_header")
_OPEN = 16  # packets after the first key frame, which may still refer to what came before it
_BEFORE_JOINT = 3  # packets before a joint that may have missing parts
_JUMP_S = 1  # a step back by more is a new part, as where recordings were joined
_SHARE = 0.01  # of the declared duration that may lack at the end, or so many frames
_FRAMES = 3


@contextmanager
def logged(names: frozenset[str]) -> Iterator[list[str]]:
    """Collect what FFmpeg logs as errors inside the block, by the decoder and the demuxer of these names.

    A decoder logs in threads of its own, so the messages of all threads are taken. Two files of one codec that are read
    at the same time in one process may get each other's.
    """
    level = logging.get_level()
    logging.set_level(logging.ERROR)
    found: list[str] = []
    try:
        with logging.Capture(local=False) as logs:
            yield found
    finally:
        logging.set_level(level)
        found += [
            message.strip()
            for severity, name, message in logs
            if severity <= logging.ERROR and name in names and not any(word in message.lower() for word in _HARMLESS)
        ]


class Damage:
    """Follow what is wrong with a video while it is read, and say it in one sentence."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._why = ""
        self._time_s: Fraction | None = None  # of the first damage
        self._frame = 0  # that of the first damage
        self._num_given = 0
        self._num_more = 0
        self._cut = ""
        self._since_key: int | None = None  # packets since the first key frame of this part; None before it
        self._last_s: Fraction | None = None  # when the last packet is decoded
        self._suspects: deque[tuple[Fraction | None] | None] = deque()  # the newest packets, with times if parts lack

    def packet(self, packet: "Packet[VideoStream] | None", time_s: Fraction | None) -> None:
        """Look at a packet, or at the end, before it is decoded.

        A packet beside a joint has missing parts too, by the count of another recording. That is no damage.

        Args:
            packet: The packet; None at the end.
            time_s: When it is decoded, by its timestamp; None where it has none.
        """
        is_joint = time_s is not None and self._last_s is not None and time_s < self._last_s - _JUMP_S
        if is_joint:
            self._since_key = None
            self._suspects.clear()
        while self._suspects and (packet is None or len(self._suspects) >= _BEFORE_JOINT):
            if suspect := self._suspects.popleft():
                self.note("parts of a packet are missing", *suspect)
        if packet is None:
            return
        if self._since_key is not None or packet.is_keyframe:
            self._since_key = (self._since_key or 0) + 1
        self._last_s = self._last_s if time_s is None else time_s
        self._suspects.append((time_s,) if packet.is_corrupt and not is_joint else None)

    def note(self, why: str, time_s: Fraction | None) -> None:
        """Note what is wrong, and the timestamp of the faulty picture; None where it has none."""
        is_open = self._since_key is None or self._since_key <= _OPEN
        if is_open and any(word in why.lower() for word in _REFERENCES):
            return
        if self._why:
            self._num_more += 1
            return
        self._why, self._frame, self._time_s = why, self._num_given, time_s

    def given(self, time_s: Fraction | None) -> None:
        """Count a frame that is given: pictures are decoded in another order than they are shown in."""
        self._num_given += 1
        if self._why and time_s is not None and self._time_s is not None and time_s < self._time_s:
            self._frame += 1

    def ended(self, num_frames: int, read_s: float, declared_s: float | None, period_s: float) -> None:
        """Note the end, and whether the file declares to be longer.

        Args:
            read_s: The time at which the last picture ends.
            declared_s: The duration that the file declares; None where it does not.
            period_s: Seconds from a frame to the next.
        """
        if declared_s is not None and declared_s - read_s > max(_FRAMES * period_s, _SHARE * declared_s):
            self._cut = f"cut off after frame {num_frames - 1:,}: {read_s:.2f} s of {declared_s:.2f} s are there"

    @property
    def sentence(self) -> str:
        """Return what is wrong, with the number of the frame, from 0; "" where nothing is."""
        if not self._why:
            return f"{self._name} is {self._cut}" if self._cut else ""
        more = f", and {self._num_more:,} more faults" if self._num_more else ""
        cut = f"; it is {self._cut}" if self._cut else ""
        return f"{self._name} is damaged from frame {self._frame:,} on ({self._why}{more}){cut}"
