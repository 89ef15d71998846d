"""Read the events of a trace file one by one, however large it is: text is unpacked, parsed and let go in pieces.

The format is Chrome's "Trace Event Format": a JSON object whose "traceEvents" holds the events, or the bare array of
them; plain or gzip. A file that is anything else, or only a part of one, raises TraceError.
"""

import codecs
import gzip
import io
import json
import re
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from whet.errors import TraceError, reason
from whet.figures import one_line

_CHUNK = 1 << 20  # bytes read at once
_LONGEST_VALUE = 64 << 20  # characters; one event of a real trace has a few thousand
_MOST_TEXT = 4 << 30  # bytes of JSON, unpacked
_WORD_AT_END = re.compile(r"[-+.0-9A-Za-z\\]{0,16}")  # nothing, or what may be half a number, literal or escape
_SPACE = re.compile(r"[ \t\r\n]*")
_WANTED = "a trace is wanted as torch.profiler's export_chrome_trace writes it"
_FOREIGN = {  # the first bytes of what traces are sometimes packed in
    b"PK\x03\x04": "a zip archive: unpack it first",
    b"\x28\xb5\x2f\xfd": "packed with zstd: unpack it first (unzstd)",
    b"\xfd7zXZ": "packed with xz: unpack it first (unxz)",
    b"BZh": "packed with bzip2: unpack it first (bunzip2)",
    b"SQLite format 3": "an SQLite database (nsys writes such): a trace by torch.profiler is wanted",
}


class TraceFile:
    """The events of one file. Iterate over it once; `header` then holds what else the file says.

    header: the top-level values beside the events, as deviceProperties and distributedInfo.
    num_seen: events read so far, of any kind.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: dict[str, Any] = {}
        self.num_seen = 0
        self._stream: io.BufferedIOBase
        self._text = ""
        self._at = 0
        self._num_bytes = 0
        self._ended = False
        self._is_json = False  # until a key or an event has been read
        self._decoder = json.JSONDecoder(strict=False)  # kernel names have been seen with raw control characters
        self._decode = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Every event that is a JSON object. Raises TraceError for a file that cannot be read to its end."""
        try:
            with self._open() as self._stream:
                yield from self._document()
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self._broken(_gzip_fault(error)) from error
        except OSError as error:
            raise TraceError(f"{self.path}: cannot be read: {error.strerror or error}") from error
        finally:
            self._text = ""

    def _open(self) -> io.BufferedIOBase:
        mode = self.path.stat().st_mode
        if not stat.S_ISREG(mode):
            kind = "a directory" if stat.S_ISDIR(mode) else "no regular file"
            raise TraceError(f"{self.path}: is {kind}; name one trace file, as torch.profiler writes them")
        with self.path.open("rb") as file:
            head = file.read(16)
        if not head:
            raise TraceError(f"{self.path}: is empty; record the trace again")
        for magic, what in _FOREIGN.items():
            if head.startswith(magic):
                raise TraceError(f"{self.path}: is {what}")
        if head.startswith(b"\x1f\x8b"):
            return gzip.open(self.path, "rb")
        return self.path.open("rb")

    def _document(self) -> Iterator[dict[str, Any]]:
        first = self._next_character()
        if first == "[":
            yield from self._array()
            found = True
        elif first == "{":
            found = False
            for key in self._keys():
                if key == "traceEvents" and self._next_character() == "[":
                    found = True
                    yield from self._array()
                else:
                    value = self._value()
                    if key != "traceEvents":
                        self.header[key] = value
        elif first:
            raise TraceError(f"{self.path}: is not JSON; {_WANTED}")
        else:
            raise TraceError(f"{self.path}: holds nothing but blanks; record the trace again")
        if self._next_character():
            raise self._broken("goes on after the end of its JSON")
        if not found:
            keys = ", ".join(map(repr, list(self.header)[:4])) or "nothing"
            raise TraceError(f"{self.path}: is JSON without traceEvents (it holds {_short(keys)}), so no PyTorch trace")

    def _keys(self) -> Iterator[str]:
        """The keys of the object that begins here; the caller reads each value before it asks for the next."""
        self._at += 1
        if self._next_character() == "}":
            self._at += 1
            return
        while True:
            key = self._value()
            if not isinstance(key, str) or self._next_character() != ":":
                raise self._fault("a key and a colon were expected")
            self._at += 1
            self._is_json = True
            yield key
            if self._ends("}"):
                return

    def _array(self) -> Iterator[dict[str, Any]]:
        """The objects in the array that begins here."""
        self._at += 1
        if self._next_character() == "]":
            self._at += 1
            return
        while True:
            event = self._value()
            self.num_seen += 1
            self._is_json = True
            if type(event) is dict:
                yield event
            if self._ends("]"):
                return

    def _ends(self, bracket: str) -> bool:
        """Whether the object or array closes here; if not, the comma before its next element is passed."""
        mark = self._next_character()
        if mark not in (",", bracket) or not mark:
            raise self._fault(f"a comma or {bracket} was expected")
        self._at += 1
        return mark == bracket

    def _value(self) -> Any:
        """The JSON value that begins here, after blanks."""
        self._next_character()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except RecursionError as error:
                raise self._broken("nests its JSON too deeply for a trace") from error
            except json.JSONDecodeError as error:
                if not self._stops_short(error) or not self._read():
                    raise self._fault(error.msg, error.pos) from error
            except ValueError as error:  # a number of thousands of digits
                raise self._fault(reason(error)) from error
            else:
                if end < len(self._text) or not self._read():  # else a number may go on in what is not read yet
                    self._at = end
                    return value

    def _stops_short(self, error: json.JSONDecodeError) -> bool:
        """Whether the value may only seem damaged because the rest of it has not been read yet."""
        return error.msg.startswith("Unterminated string") or error.pos + 16 >= len(self._text)

    def _next_character(self) -> str:
        """Pass blanks; the character after them, or nothing at the end of the file."""
        while True:
            self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]  # matches nothing as well
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._read():
                return ""

    def _read(self) -> bool:
        """Read on and let go of what was parsed; False at the end of the file."""
        if self._ended:
            return False
        left = len(self._text) - self._at
        if left > _LONGEST_VALUE:
            raise self._broken(f"holds a single value of more than {_LONGEST_VALUE >> 20} MB: no PyTorch trace does")
        # As much again as is left, so that a long value is not parsed from its start once per chunk.
        data = self._stream.read(max(_CHUNK, left))
        self._ended = not data
        self._num_bytes += len(data)
        if self._num_bytes > _MOST_TEXT:
            raise self._broken(f"unpacks to more than {_MOST_TEXT >> 30} GB; record fewer steps")
        self._text = self._text[self._at :] + self._decode.decode(data, final=self._ended)
        self._at = 0
        return True

    def _fault(self, what: str, position: int | None = None) -> TraceError:
        """The error for JSON that does not go on as JSON does: cut off, where the file ends here, or else damaged."""
        at = self._at if position is None else position
        rest = self._text[at : at + 24]
        if self._ended and (_WORD_AT_END.fullmatch(rest) or what.startswith("Unterminated string")):
            return self._broken("is cut off")
        if not self._is_json:
            return TraceError(f"{self.path}: is not JSON; {_WANTED}")
        return self._broken(f"is damaged: {what} at {_short(rest)!r}")

    def _broken(self, what: str) -> TraceError:
        where = f" after {self.num_seen:,} events" if self.num_seen else ""
        return TraceError(f"{self.path}: {what}{where}; copy the file again, or record the trace again")


def _gzip_fault(error: Exception) -> str:
    return "is cut off (its gzip stream has no end)" if isinstance(error, EOFError) else "is damaged (bad gzip data)"


def _short(text: str, length: int = 80) -> str:
    """Text from a file on one line, without what would steer a terminal."""
    plain = one_line(text)
    return plain if len(plain) <= length else f"{plain[: length - 1]}…"
