"""From the bytes of a Python file to its text, as Python itself reads them."""

import codecs
import io
import tokenize


class Undecodable(Exception):
    """The bytes are no Python source. line: where, from 1; 0 where that cannot be said."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line
        self.message = message


def decode(data: bytes) -> tuple[str, str]:
    """Text and encoding of a Python file; line ends stay as they are. The byte order mark is the encoding's.

    Raises Undecodable where Python would not read the file. Source: PEP 263, through `tokenize.detect_encoding`.
    """
    if b"\0" in data and not data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise Undecodable(data[: data.index(b"\0")].count(b"\n") + 1, "it holds a NUL byte")
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise Undecodable(1, "it is UTF-16; Python reads UTF-8, or what the first two lines declare")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except SyntaxError as error:
        if _declares(data):
            raise Undecodable(1, f"its encoding is not known: {str(error).partition(':')[2].strip()}") from error
        raise Undecodable(*_not_utf8(data)) from error
    try:
        return data.decode(encoding), encoding
    except (UnicodeError, LookupError) as error:
        if encoding.startswith("utf-8"):
            raise Undecodable(*_not_utf8(data)) from error
        start = error.start if isinstance(error, UnicodeDecodeError) else 0
        raise Undecodable(data[:start].count(b"\n") + 1, f"it is not {encoding}, as it declares") from error


def _declares(data: bytes) -> bool:
    """Whether one of the first two lines names an encoding, or tries to."""
    return any(line.lstrip().startswith(b"#") and b"coding" in line for line in data.split(b"\n", 2)[:2])


def _not_utf8(data: bytes) -> tuple[int, str]:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return data[: error.start].count(b"\n") + 1, "it is not UTF-8, and declares no other encoding"
    return 1, "its encoding cannot be told"
