"""Read documents from text files and lines of JSON, as a stream of parts, so that files may be larger than memory."""

import codecs
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from whet.core.tokenizer_files.chat_template import ChatTemplate
from whet.errors import OptionError, TargetError, reason, type_name
from whet.trainer.tokens.chat import COMPLETION, MESSAGES, PROMPT, Segment, completion_segments, segments_of
from whet.trainer.tokens.file_digests import cannot_be_read

_BLOCK = 1 << 20  # bytes that are read together
_TEXT, _LINES = (".txt", ".text", ".md"), (".jsonl", ".ndjson", ".json")
_MARK = "\ufeff"  # some programs put it in front of a text in UTF-8


class Part(NamedTuple):
    """Hold a part of a document.

    Attributes:
        is_trained: Whether a model is to learn it. It is then encoded by itself. None: it is running text, which goes
            on in the next part.
        ends_document: Whether the document ends here.
        has_end: Whether the text of the document says itself that it ends.
    """

    text: str
    is_trained: bool | None = None
    ends_document: bool = False
    has_end: bool = False


@dataclass(frozen=True)
class Sources:
    """Name the files of a text, and how documents lie in them.

    A `.txt` holds one document, or several between separators. A `.jsonl` holds one in each line: a text, or a list of
    messages, under `text_key`; or else `messages`; or `prompt` and `completion`. A `.json` holds lines, or one list.
    Any of them may be compressed, as `.txt.gz`.

    Attributes:
        separator: What stands between documents of a `.txt`, such as a blank line; None for one document a file.
    """

    files: tuple[Path, ...]
    text_key: str = "text"
    separator: str | None = None

    def __post_init__(self) -> None:
        if not self.files:
            raise OptionError("name one file of text or more")
        if self.separator == "":
            raise OptionError("a separator has one character or more; leave it out for one document a file")

    @classmethod
    def of(cls, files: "Sources | Path | str | Sequence[Path | str]", **options: Any) -> "Sources":
        """Return sources for one file or several.

        Args:
            files: A path or several; or sources, which are returned as they are.
            **options: text_key and separator.
        """
        if isinstance(files, Sources):
            return files
        several = [files] if isinstance(files, Path | str) else files
        return cls(tuple(Path(file).expanduser() for file in several), **options)

    def parts(self, template: ChatTemplate) -> Iterator[Part]:
        """Yield the documents of all files, in order, in parts.

        Raises:
            TargetError: A file is missing, cannot be read, or does not hold what it should.
        """
        for path in self.files:
            kind = _kind_of(path)
            if kind not in _TEXT + _LINES:
                known = ", ".join(_TEXT + _LINES)
                raise TargetError(f"{path} is no file of text that whet knows: it reads {known}, and these with .gz")
            with _opened(path) as file:
                if kind in _TEXT:
                    yield from _text_parts(_decoded(path, file), self.separator)
                else:
                    yield from self._record_parts(path, file, template)

    def _record_parts(self, path: Path, file: BinaryIO, template: ChatTemplate) -> Iterator[Part]:
        for place, record in _records(path, file):
            try:
                yield from self._parts_of(record, template)
            except TargetError as error:
                raise TargetError(f"{place}: {error}") from error

    def _parts_of(self, record: Mapping[str, Any], template: ChatTemplate) -> list[Part]:
        if self.text_key in record:
            value = record[self.text_key]
            if isinstance(value, str):
                return [Part(_valid(value), ends_document=True)]
            if not isinstance(value, list):
                raise TargetError(f"{self.text_key} is {type_name(value)}; it must be a text or a list of messages")
            return _closed(segments_of(template, value, record.get("tools")), has_end=True)
        if MESSAGES in record:
            return _closed(segments_of(template, record[MESSAGES], record.get("tools")), has_end=True)
        if PROMPT in record and COMPLETION in record:
            segments = completion_segments(template, record[PROMPT], record[COMPLETION])
            return _closed(segments, has_end=isinstance(record[PROMPT], list))
        keys = ", ".join(record) or "none"
        raise TargetError(
            f"there is no {self.text_key!r}, nor {MESSAGES}, nor {PROMPT} and {COMPLETION}; the keys are: {keys}"
        )


def records(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the objects of a file of JSON lines, each with its place for messages.

    Raises:
        TargetError: The file is missing, cannot be read, or holds something else.
    """
    if _kind_of(path) not in _LINES:
        raise TargetError(
            f"{path} is no file of JSON lines: give one that ends in {', '.join(_LINES)}, or in these with .gz"
        )
    with _opened(path) as file:
        yield from _records(path, file)


def _closed(segments: Sequence[Segment], *, has_end: bool) -> list[Part]:
    last = len(segments) - 1
    return [
        Part(_valid(text), is_trained, ends_document=number == last, has_end=has_end)
        for number, (text, is_trained) in enumerate(segments)
    ]


def _valid(text: str) -> str:
    """Return a text that has no half of a surrogate pair, which escapes in JSON can write."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TargetError(f"the text is not valid Unicode at character {error.start}") from error
    return text


def _kind_of(path: Path) -> str:
    return path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file, which may be compressed, and say as a TargetError what is wrong where it cannot be read."""
    try:
        with cast(BinaryIO, gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb") as file:
            yield file
    except OSError as error:
        raise TargetError(cannot_be_read(path, error)) from error
    except (EOFError, zlib.error) as error:
        raise TargetError(f"{path} cannot be read: {reason(error)}") from error


def _decoded(path: Path, file: BinaryIO) -> Iterator[str]:
    """Yield a file's text in blocks.

    Raises:
        TargetError: It is not UTF-8.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset, is_first = 0, True
    while True:
        block = file.read(_BLOCK)
        held = len(decoder.getstate()[0])
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            raise TargetError(_no_utf8(path, error, offset - held)) from error
        if text:
            yield text.removeprefix(_MARK) if is_first else text
            is_first = False
        if not block:
            return
        offset += len(block)


def _no_utf8(place: object, error: UnicodeDecodeError, offset: int) -> str:
    byte = f"byte 0x{error.object[error.start]:02x} at offset {offset + error.start:,}"
    return f"{place} is not UTF-8: {byte}; convert it, for example with iconv"


def _text_parts(blocks: Iterable[str], separator: str | None) -> Iterator[Part]:
    """Yield the documents of a text. Separators belong to none."""
    held = ""
    for block in blocks:
        if separator is None:
            yield Part(block)
            continue
        *whole, held = (held + block).split(separator)
        for text in whole:
            yield Part(text, ends_document=True)
        known = len(held) - len(separator) + 1  # from here on, a separator may have begun
        if known > 0:
            yield Part(held[:known])
            held = held[known:]
    yield Part(held, ends_document=True)


def _records(path: Path, file: BinaryIO) -> Iterator[tuple[str, Mapping[str, Any]]]:
    offset = 0
    for number, line in enumerate(file, 1):
        place = f"{path}:{number}"
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise TargetError(_no_utf8(place, error, offset)) from error
        if number == 1:
            text = text.removeprefix(_MARK)
            if ".json" in path.suffixes and text.lstrip().startswith("["):
                yield from _listed(path, line + file.read())
                return
        offset += len(line)
        if not text.strip():
            continue
        yield place, _object(place, _parsed(place, text))


def _listed(path: Path, content: bytes) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the objects of one list."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise TargetError(_no_utf8(path, error, 0)) from error
    for number, value in enumerate(_parsed(str(path), text.removeprefix(_MARK)), 1):
        place = f"{path}, record {number}"
        yield place, _object(place, value)


def _parsed(place: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TargetError(f"{place} is no JSON: {reason(error)}; a file of lines has one object in each") from error


def _object(place: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TargetError(f'{place} holds {type_name(value)}, and no object such as {{"text": "..."}}')
    return value
