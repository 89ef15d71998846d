"""Decode tokens to text, never with half a character. The pieces, joined, equal the decoded whole sequence."""

import codecs
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

_INCOMPLETE = "\ufffd"
_MOST_HELD = 8  # tokens held back at most; a character has up to 4 bytes, so more tokens are no incomplete character


class Detokenizer(Protocol):
    """Decode the tokens of one sequence."""

    def add(self, token_ids: Sequence[int]) -> str:
        """Add tokens, and return the text that is now certain. It may be empty."""

    def finish(self) -> str:
        """Return the rest of the text. Call it after the last token."""


class ByteDetokenizer:
    """Decode vocabularies in which each token stands for bytes. A token takes constant time.

    `bytes_of` returns the bytes of a token; none for a token that is not shown.
    """

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, token_ids: Sequence[int]) -> str:
        return self._decoder.decode(b"".join(map(self._bytes_of, token_ids)))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """Decode any other vocabulary: decode the last few tokens with and without the new ones, return the difference.

    Args:
        is_silent: Returns whether a token adds nothing to any text.
        is_byte: Returns whether a token stands for one byte. The text of a run of these is known only at its end.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], is_silent: Callable[[int], bool], is_byte: Callable[[int], bool]
    ) -> None:
        self._decode = decode
        self._is_silent = is_silent
        self._is_byte = is_byte
        self._context: list[int] = []  # the last tokens returned as text; the text of the next one depends on them
        self._context_text = ""
        self._held: list[int] = []

    def add(self, token_ids: Sequence[int]) -> str:
        return "".join(map(self._add_one, token_ids))

    def finish(self) -> str:
        return self._say(self._decode(self._context + self._held)) if self._held else ""

    def _add_one(self, token_id: int) -> str:
        if self._is_silent(token_id):
            return ""
        self._held.append(token_id)
        if self._is_byte(token_id):
            return ""
        text = self._decode(self._context + self._held)
        if text.endswith(_INCOMPLETE) and len(self._held) < _MOST_HELD:
            return ""
        return self._say(text)

    def _say(self, text: str) -> str:
        new = text[len(self._context_text) :]
        if new:
            self._context, self._context_text = self._held, self._decode(self._held)
        else:
            self._context = self._context + self._held
        self._held = []
        return new


class MarkedDetokenizer:
    """Show the special tokens of `marks` as their text. What stands between two of them is detokenised by itself."""

    def __init__(self, make: Callable[[], Detokenizer], marks: Mapping[int, str]) -> None:
        self._make, self._marks = make, marks
        self._between = make()

    def add(self, token_ids: Sequence[int]) -> str:
        return "".join(map(self._add_one, token_ids))

    def finish(self) -> str:
        return self._between.finish()

    def _add_one(self, token_id: int) -> str:
        mark = self._marks.get(token_id)
        if mark is None:
            return self._between.add((token_id,))
        before, self._between = self._between.finish(), self._make()
        return before + mark
