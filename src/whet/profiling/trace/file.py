"""Read the events of a trace file one by one. The text is decompressed and parsed in pieces, so memory stays bounded.

The format is Chrome's "Trace Event Format": a JSON object with the events as "traceEvents", or the bare array of them,
plain or gzip. Any other file, and a file that is cut off or damaged, raises TraceError.
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
from whet.ui.figures import one_line

_CHUNK = 1 << 20  # bytes read at once
_LONGEST_VALUE = 64 << 20  # characters; an event of a real trace has a few thousand
_MOST_TEXT = 4 << 30  # bytes of decompressed JSON
_WORD_AT_END = re.compile(r"[-+.0-9A-Za-z\\]{0,16}")  # an empty text, or perhaps half a number, literal or escape
_SPACE = re.compile(r"[ \t\r\n]*")
_WANTED = "pass a trace that torch.profiler's export_chrome_trace wrote"
_FOREIGN = {  # the first bytes of files that traces are sometimes confused with or compressed to
    b"PK\x03\x04": "a zip archive: unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed with zstd: decompress it first (unzstd)",
    b"\xfd7zXZ": "compressed with xz: decompress it first (unxz)",
    b"BZh": "compressed with bzip2: decompress it first (bunzip2)",
    b"SQLite format 3": "an SQLite database, as nsys writes: pass a trace by torch.profiler instead",
}


class TraceFile:
    """Read the events of one file. Iterate over it once.

    Attributes:
        header: The top-level values other than the events, as deviceProperties and distributedInfo, once all is read.
        num_seen: How many events have been read, of any kind.
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
        self._is_json = False  # whether a key or an event has been read
        self._decoder = json.JSONDecoder(strict=False)  # some kernel names contain raw control characters
        self._decode = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield every event that is a JSON object.

        Raises:
            TraceError: The file cannot be read to its end.
        """
        try:
            with self._open() as self._stream:
                yield from self._document()
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            is_cut_off = isinstance(error, EOFError)
            fault = "is cut off (its gzip stream has no end)" if is_cut_off else "is damaged (bad gzip data)"
            raise self._broken(fault) from error
        except OSError as error:
            raise TraceError(f"{self.path}: cannot be read: {error.strerror or error}") from error
        finally:
            self._text = ""

    def _open(self) -> io.BufferedIOBase:
        mode = self.path.stat().st_mode
        if not stat.S_ISREG(mode):
            kind = "a directory" if stat.S_ISDIR(mode) else "no regular file"
            raise TraceError(f"{self.path}: is {kind}; pass one trace file, as torch.profiler writes it")
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
            raise TraceError(f"{self.path} is not JSON; {_WANTED}")
        else:
            raise TraceError(f"{self.path} holds only whitespace; record the trace again")
        if self._next_character():
            raise self._broken("goes on after the end of its JSON")
        if not found:
            keys = ", ".join(map(repr, list(self.header)[:4])) or "nothing"
            raise TraceError(f"{self.path}: is JSON without traceEvents (it holds {_short(keys)}); {_WANTED}")

    def _keys(self) -> Iterator[str]:
        """Yield the keys of the object that begins here. The caller reads each value before asking for the next key."""
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
        """Yield the objects in the array that begins here."""
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
        """Return whether the object or array ends here. If not, skip the comma before its next element."""
        mark = self._next_character()
        if mark not in (",", bracket) or not mark:
            raise self._fault(f"a comma or {bracket} was expected")
        self._at += 1
        return mark == bracket

    def _value(self) -> Any:
        """Return the JSON value that begins here, after whitespace."""
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
                if end < len(self._text) or not self._read():  # otherwise a number may continue in the next piece
                    self._at = end
                    return value

    def _stops_short(self, error: json.JSONDecodeError) -> bool:
        """Return whether the value may look damaged only because the rest of it has not been read yet."""
        return error.msg.startswith("Unterminated string") or error.pos + 16 >= len(self._text)

    def _next_character(self) -> str:
        """Skip whitespace, and return the character after it; "" at the end of the file."""
        while True:
            self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]  # it always matches
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._read():
                return ""

    def _read(self) -> bool:
        """Read the next piece, and drop the text that was parsed. Return False at the end of the file."""
        if self._ended:
            return False
        left = len(self._text) - self._at
        if left > _LONGEST_VALUE:
            raise self._broken(
                f"holds a single value of more than {_LONGEST_VALUE >> 20} MB, so it is no PyTorch trace"
            )
        # Read at least as much as is left, so that a long value is not parsed from its start once per chunk.
        data = self._stream.read(max(_CHUNK, left))
        self._ended = not data
        self._num_bytes += len(data)
        if self._num_bytes > _MOST_TEXT:
            raise self._broken(f"decompresses to more than {_MOST_TEXT >> 30} GB; record fewer steps")
        self._text = self._text[self._at :] + self._decode.decode(data, final=self._ended)
        self._at = 0
        return True

    def _fault(self, what: str, position: int | None = None) -> TraceError:
        """Return the error for invalid JSON: the file is cut off if it ends here, or else damaged."""
        at = self._at if position is None else position
        rest = self._text[at : at + 24]
        if self._ended and (_WORD_AT_END.fullmatch(rest) or what.startswith("Unterminated string")):
            return self._broken("is cut off")
        if not self._is_json:
            return TraceError(f"{self.path} is not JSON; {_WANTED}")
        return self._broken(f"is damaged: {what} at {_short(rest)!r}")

    def _broken(self, what: str) -> TraceError:
        where = f" after {self.num_seen:,} events" if self.num_seen else ""
        return TraceError(f"{self.path} {what}{where}; copy the file again, or record the trace again")


def _short(text: str, length: int = 80) -> str:
    """Return text from a file on one line, without control characters, cut to `length`."""
    plain = one_line(text)
    return plain if len(plain) <= length else f"{plain[: length - 1]}…"
