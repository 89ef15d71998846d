"""Define the binary messages between page and server: 16 bytes that say what follows, and a picture as JPEG."""

import math
import struct
from dataclasses import dataclass
from typing import Literal, get_args

from whet.errors import RequestError

Kind = Literal["frame", "input", "computed", "still", "skipped", "discarded", "not finite"]
"""What a picture is: a "frame" of the browser's camera, the "input" of the server's own source, or an answer."""

KINDS: tuple[Kind, ...] = get_args(Kind)

_LAYOUT = struct.Struct("!2sBBId")
_MAGIC, _VERSION = b"wf", 1
NUM_BYTES = _LAYOUT.size
"""The bytes of a header."""


@dataclass(frozen=True, slots=True)
class Header:
    """Say which picture follows. In bytes, all numbers are big-endian.

    Attributes:
        kind: What the picture is. In bytes, its position in `KINDS`.
        sequence: The frame's number, from 0 to 4,294,967,295, given by who sent it. An answer has that of its frame.
        captured_ms: When the frame was taken, in milliseconds of the clock of who sent it. An answer repeats it.
    """

    kind: Kind
    sequence: int
    captured_ms: float

    def pack(self) -> bytes:
        return _LAYOUT.pack(_MAGIC, _VERSION, KINDS.index(self.kind), self.sequence, self.captured_ms)


def parse(message: bytes) -> tuple[Header, memoryview]:
    """Return a message's header and the picture's bytes.

    Raises:
        RequestError: The message has no such header.
    """
    if len(message) < NUM_BYTES:
        raise RequestError(f"a frame begins with a header of {NUM_BYTES} bytes; got {len(message)} bytes")
    magic, version, kind, sequence, captured_ms = _LAYOUT.unpack_from(message)
    if magic != _MAGIC or version != _VERSION:
        raise RequestError("the page is of another version of whet than the server; load it again")
    if kind >= len(KINDS):
        raise RequestError(f"a frame's kind is a number from 0 to {len(KINDS) - 1}; got {kind}")
    if not math.isfinite(captured_ms):
        raise RequestError(f"a frame's time of capture is a number; got {captured_ms}")
    return Header(KINDS[kind], sequence, captured_ms), memoryview(message)[NUM_BYTES:]
