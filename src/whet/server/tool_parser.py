"""Calls of tools in a model's text as it comes: what is content, and what is a call's name and its arguments.

What only looks like a call (no JSON object, another name, no arguments) is content, with its marks. A call is one as
soon as its name is known and its arguments have begun; they are passed on as they stand, even where they break off.
"""

import json
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from whet.server.tool_formats import ToolFormat

_SPACE = " \t\r\n"
_KEYS = ("arguments", "parameters")
_LONGEST_HEAD = 8 * 2**10  # characters before a call's arguments: what goes on for longer is content
_SHORT = 512  # characters that are read again with each piece of text; longer ones as often as they grow by an eighth


@dataclass(frozen=True)
class Content:
    """This is text that is no call."""

    text: str


@dataclass(frozen=True)
class CallBegins:
    """A call begins. `index` is its number among those of the answer."""

    index: int
    name: str


@dataclass(frozen=True)
class Arguments:
    """This is the next piece of a call's arguments, as JSON text."""

    index: int
    text: str


Event = Content | CallBegins | Arguments


class _NotYet(Exception):
    """The text ends before it can be known."""


class _NoCall(Exception):
    """The text is none of a call."""


class ToolParser:
    """Read one answer.

    A call of a tool that is not in `names` is content. Unless `several`, calls after the first one are left out.
    """

    def __init__(self, form: ToolFormat, names: Collection[str], *, several: bool = True) -> None:
        self._format, self._names, self._several = form, names, several
        self._text = ""  # that is not settled
        self._read: Callable[[], Iterator[Event]] = self._read_content
        self._mark = ""  # what stood before the call that is being read
        self._is_list = False
        self._num_calls = 0
        self._has_content = False  # that is more than whitespace
        self._scan = _Scan()
        self._least = 0  # characters before the text is read again, so that reading takes time that grows as the text

    def add(self, text: str) -> list[Event]:
        """Return what new text makes certain."""
        self._text += text
        return self._settled() if len(self._text) >= self._least else []

    def finish(self) -> list[Event]:
        """Return the rest, once there is no more text. What has not come to its arguments is content."""
        events = self._settled()
        text, self._text = self._mark + self._text, ""
        is_rest_of_calls = self._num_calls and not self._has_content and not text.strip("}]" + _SPACE)
        return [*events, Content(text)] if text and not is_rest_of_calls else events

    def _settled(self) -> list[Event]:
        events: list[Event] = []
        try:
            while True:
                for event in self._read():
                    if self._several or isinstance(event, Content) or event.index == 0:
                        events.append(event)  # noqa: PERF401 - those before _NotYet are kept
        except _NotYet:
            size = len(self._text)
            self._least = 0 if size <= _SHORT else size + size // 8
            return events

    def _say(self, text: str) -> Iterator[Event]:
        if text:
            self._has_content = self._has_content or bool(text.strip())
            yield Content(text)

    def _read_content(self) -> Iterator[Event]:
        """Look for a mark. Whitespace that begins an answer, or follows a call, waits for what comes after it."""
        text, begin = self._text, self._format.begin
        found, blank = text.find(begin), text.lstrip(_SPACE)
        if self._format.is_bare and not self._has_content and not self._num_calls and blank.startswith("{"):
            self._enter(text[: len(text) - len(blank)], blank)
        elif found >= 0:
            before = text[:found]
            if before.strip() or self._has_content:
                yield from self._say(before)
                before = ""
            self._enter(before + begin, text[found + len(begin) :])
        else:
            keep = next(
                (size for size in range(min(len(begin) - 1, len(text)), 0, -1) if begin.startswith(text[-size:])), 0
            )
            certain = text[: len(text) - keep]
            if certain.strip() or (certain and (self._has_content or len(certain) > _LONGEST_HEAD)):
                self._text = text[len(certain) :]
                yield from self._say(certain)
            raise _NotYet

    def _enter(self, mark: str, rest: str) -> None:
        self._read, self._mark, self._text, self._is_list = self._read_call, mark, rest, False

    def _read_call(self) -> Iterator[Event]:
        """Read from a mark, or from between two calls of a list, to the arguments."""
        text = self._text
        try:
            place = _skip(text, 0)
            is_list = self._is_list or (text[place] == "[" and self._mark != "")
            if is_list and not self._is_list:
                place = _skip(text, place + 1)
            name, place, arguments = self._head(text, place)
        except _NotYet:
            if len(text) <= _LONGEST_HEAD:
                raise
            said, self._mark, self._text, self._read = self._mark + text, "", "", self._read_content
            yield from self._say(said)
        except _NoCall:
            yield from self._refuse()
        else:
            self._is_list, self._mark = is_list, ""
            self._num_calls += 1
            yield CallBegins(self._num_calls - 1, name)
            self._text, self._scan, self._read = text[place:], _Scan(), self._read_arguments
            if arguments is not None:
                self._read = self._read_after
                yield Arguments(self._num_calls - 1, arguments)

    def _refuse(self) -> Iterator[Event]:
        """Say the mark, which began no call. Another one may follow. Without a mark, say one character."""
        said = self._mark or self._text[:1]
        self._text = self._text if self._mark else self._text[1:]
        if self._format.is_bare and self._text.startswith("{") and not said.strip():
            said, self._text = said + "{", self._text[1:]
        self._mark, self._read = "", self._read_content
        yield from self._say(said)

    def _head(self, text: str, first: int) -> tuple[str, int, str | None]:
        """Read a call up to its arguments.

        Returns:
            The name, the place of the arguments, and None; or the place after the object and the whole arguments,
            where these stand before the name or are no object.
        """
        _expect(text, first, "{")
        place, name, written = _skip(text, first + 1), "", ""
        while not written or not name:
            key, place = _string(text, place)
            place = _skip(text, _expect(text, _skip(text, place), ":"))
            if key in _KEYS:
                if name and text[place] == "{":
                    return name, place, None
                written = text[place : _value_end(text, place)]
            if key == "name":
                name, place = _string(text, place)
                if name not in self._names:
                    raise _NoCall
            else:
                place = _value_end(text, place)
            if not written or not name:
                place = _skip(text, _expect(text, _skip(text, place), ","))
        return name, _value_end(text, first) - 1, _arguments(written)

    def _read_arguments(self) -> Iterator[Event]:
        end = self._scan.end(self._text)
        piece = self._text if end is None else self._text[:end]
        self._text = self._text[len(piece) :]
        if piece:
            yield Arguments(self._num_calls - 1, piece)
        if end is None:
            raise _NotYet
        self._read = self._read_after

    def _read_after(self) -> Iterator[Event]:
        """Read from the end of the arguments to the next call, or to content."""
        text = self._text
        try:
            place = _skip(text, 0)
            while text[place] == ",":
                _, place = _string(text, _skip(text, place + 1))
                place = _value_end(text, _skip(text, _expect(text, _skip(text, place), ":")))
                place = _skip(text, place)
            place = _expect(text, place, "}")
        except _NotYet:
            if len(text) <= _LONGEST_HEAD:
                raise
            place = 0
        except _NoCall:
            place = 0
        self._text, self._read = text[place:], self._read_between
        yield from ()

    def _read_between(self) -> Iterator[Event]:
        """Read what stands between two calls, or after the last one."""
        if len(self._text) > _LONGEST_HEAD and not self._text[:_LONGEST_HEAD].strip(_SPACE + ",;"):
            self._read, self._has_content = self._read_content, False
            return
        place, end = _skip(self._text, 0), self._format.end
        separators = ("," if self._is_list else ";") if self._is_list or self._format.separator.strip() else ""
        if separators and self._text[place] in separators:
            rest = _skip(self._text, place + 1)
            if self._text[rest] == "{":
                self._mark, self._text, self._read = self._text[place:rest], self._text[rest:], self._read_call
                return
        if self._is_list and self._text[place] == "]":
            self._is_list, self._text = False, self._text[place + 1 :]
            return
        rest_text = self._text[place:]
        if end and end.startswith(rest_text) and rest_text != end:
            raise _NotYet
        self._text = rest_text[len(end) :] if end and rest_text.startswith(end) else self._text
        self._read, self._has_content = self._read_content, False
        yield from ()


class _Scan:
    """Finds the end of a JSON object whose text comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._is_string = self._is_escaped = False

    def end(self, text: str) -> int | None:
        """Return the place after the object in the next piece; None where it goes on."""
        for place, letter in enumerate(text):
            if self._is_string:
                if self._is_escaped:
                    self._is_escaped = False
                elif letter == "\\":
                    self._is_escaped = True
                elif letter == '"':
                    self._is_string = False
            elif letter == '"':
                self._is_string = True
            elif letter in "{[":
                self._depth += 1
            elif letter in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return place + 1
        return None


def _skip(text: str, place: int) -> int:
    """Return the place of the next character that is no whitespace. Raises _NotYet where there is none."""
    while place < len(text):
        if text[place] not in _SPACE:
            return place
        place += 1
    raise _NotYet


def _expect(text: str, place: int, letter: str) -> int:
    """Return the place after a letter. Raises _NoCall where another stands there."""
    if text[place] != letter:
        raise _NoCall
    return place + 1


def _string(text: str, place: int) -> tuple[str, int]:
    """Return a JSON string and the place after it. Raises _NotYet where it has no end, _NoCall where it is none."""
    _expect(text, place, '"')
    end = place + 1
    while end < len(text) and text[end] != '"':
        end += 2 if text[end] == "\\" else 1
    if end >= len(text):
        raise _NotYet
    return str(_decoded(text[place : end + 1])), end + 1


def _value_end(text: str, place: int) -> int:
    """Return the place after a JSON value. Raises _NotYet where it has no end yet."""
    if text[place] == '"':
        return _string(text, place)[1]
    if text[place] in "{[":
        end = _Scan().end(text[place:])
        if end is None:
            raise _NotYet
        _decoded(text[place : place + end])
        return place + end
    end = place
    while end < len(text) and text[end] not in ",}]" + _SPACE:
        end += 1
    if end == len(text):
        raise _NotYet
    _decoded(text[place:end])
    return end


def _arguments(written: str) -> str:
    """Return arguments that are known as a whole: as they were written, or as the text that a JSON string holds.

    Raises _NoCall where that text is no JSON.
    """
    value = _decoded(written)
    if not isinstance(value, str):
        return written if value else "{}"
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise _NoCall  # half a character cannot be written as UTF-8
    if value:
        _decoded(value)
    return value


def _decoded(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise _NoCall from error


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _no_number(text)


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no finite number")
