"""Text from tokens as they come, never with half a character in it.

Each returns pieces that, put together, are the decoding of the whole sequence.
"""

import codecs
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

_INCOMPLETE = "\ufffd"
_MOST_HELD = 8  # tokens: a character has at most 4 bytes, so what is held for longer is no character


class Detokenizer(Protocol):
    """One for each sequence."""

    def add(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens, after all earlier ones, make certain; may be empty."""

    def finish(self) -> str:
        """The rest, once there are no more tokens."""


class ByteDetokenizer:
    """For vocabularies in which each token stands for bytes: O(1) a token.

    bytes_of: the bytes of a token; none for one that is not shown.
    """

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, token_ids: Sequence[int]) -> str:
        return self._decoder.decode(b"".join(map(self._bytes_of, token_ids)))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For any other vocabulary: decodes the last few tokens with and without the new ones, and says the difference.

    decode: of several tokens. is_silent: a token adds nothing to any text. is_byte: a token that stands for one byte;
    what a run of them reads as is known only at its end.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], is_silent: Callable[[int], bool], is_byte: Callable[[int], bool]
    ) -> None:
        self._decode = decode
        self._is_silent = is_silent
        self._is_byte = is_byte
        self._context: list[int] = []  # the last tokens that were said: how a token reads depends on what is before it
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
    """For texts in which some special tokens are shown. What stands between two of them is a text of its own.

    make: gives the detokenizer of such a text. marks: what each token that is shown reads as.
    """

    def __init__(self, make: Callable[[], Detokenizer], marks: Mapping[int, str]) -> None:
        self._make, self._marks = make, marks
        self._between = make()

    def add(self, token_ids: Sequence[int]) -> str:
        """See Detokenizer."""
        return "".join(map(self._add_one, token_ids))

    def finish(self) -> str:
        """See Detokenizer."""
        return self._between.finish()

    def _add_one(self, token_id: int) -> str:
        mark = self._marks.get(token_id)
        if mark is None:
            return self._between.add((token_id,))
        before, self._between = self._between.finish(), self._make()
        return before + mark
