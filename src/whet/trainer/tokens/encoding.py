"""Encode a stream of documents in blocks: one block is encoded by all cores while the next one is read."""

import logging
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whet.errors import TargetError, foreign
from whet.trainer.tokens.cutting import Cutter, anywhere, cutter_of
from whet.trainer.tokens.direct import described_by, direct_encoder
from whet.trainer.tokens.documents import Part

_LOG = logging.getLogger("whet")

PIECE = 1 << 15  # characters of a long text that are encoded as one: so many that cuts cost nothing
_PIECES_PER_CORE = 8
_LEAST_BLOCK, _MOST_BLOCK = 1 << 20, 1 << 23  # characters that are encoded together
_LARGE = 1 << 25  # characters of one piece that take long, and about a hundred bytes of memory each


@dataclass(frozen=True)
class Encoded:
    """Hold the tokens of a block.

    Attributes:
        ids: The token ids. [n]
        ends: Where documents end within them.
        trained: 1 for each token that is to be learnt, uint8 [n]; None where the block has running text alone.
    """

    ids: NDArray[np.uint32]
    ends: list[int]
    trained: NDArray[np.uint8] | None


class Encoder:
    """Encode documents with a tokenizer, so that each has the tokens that it would have by itself."""

    def __init__(self, tokenizer: Any, end_id: int | None) -> None:
        """Look at how a tokenizer splits text.

        Args:
            tokenizer: A tokenizers.Tokenizer.
            end_id: The token to put behind each document that does not say itself that it ends; None for no token.
        """
        self._tokenizer, self._end_id = tokenizer, end_id
        described = described_by(tokenizer)
        self._direct = direct_encoder(tokenizer, described)
        added = [token["content"] for token in described["added_tokens"]]
        self.cutter = anywhere(added) if self._direct else cutter_of(described)
        self._open_tokens = 0  # of the document that is not at its end

    def blocks(self, parts: Iterable[Part]) -> Iterator[Encoded]:
        """Yield the tokens of documents.

        Raises:
            TargetError: The tokenizer fails.
        """
        self._open_tokens = 0
        with ThreadPoolExecutor(1, "whet-encode") as executor:
            waiting: tuple[Sequence[Part], Any] | None = None
            for block in _in_blocks(cut(parts, self.cutter)):
                future = executor.submit(self._ids, [part.text for part in block])
                if waiting is not None:
                    yield self._laid_out(waiting[0], waiting[1].result())
                waiting = block, future
            if waiting is not None:
                yield self._laid_out(waiting[0], waiting[1].result())

    def _ids(self, texts: Sequence[str]) -> Sequence[Any]:
        """Return the token ids of texts, as arrays or as the library's encodings."""
        with foreign(TargetError, "the tokenizer cannot encode the text"):
            if self._direct is not None:
                return [self._direct(text) for text in texts]
            # encode_batch_fast counts no offsets, and lets other threads run.
            found: Sequence[Any] = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
            return found

    def _laid_out(self, parts: Sequence[Part], encodings: Sequence[Any]) -> Encoded:
        """Put the tokens of a block one after the other, with an end of text behind each document."""
        flat, ends, mask = array("I"), [], bytearray()
        has_mask = any(part.is_trained is not None for part in parts)
        for part, encoding in zip(parts, encodings, strict=True):
            before = len(flat)
            if self._direct is None:
                flat.extend(encoding.ids)
            else:
                flat.frombytes(encoding.tobytes())
            self._open_tokens += len(flat) - before
            if part.ends_document and self._open_tokens:  # a document without any tokens is left out
                if self._end_id is not None and not part.has_end:
                    flat.append(self._end_id)
                ends.append(len(flat))
                self._open_tokens = 0
            if has_mask:
                mask += (b"\0" if part.is_trained is False else b"\1") * (len(flat) - before)
        trained = np.frombuffer(mask, np.uint8) if has_mask else None
        return Encoded(np.array(flat, np.uint32), ends, trained)


def cut(parts: Iterable[Part], cutter: Cutter) -> Iterator[Part]:
    """Yield parts so that each can be encoded by itself: running text is joined, and cut where that changes nothing."""
    held: list[str] = []
    num_held, enough = 0, 2 * PIECE
    for part in parts:
        if part.is_trained is not None or (part.ends_document and not held and len(part.text) <= PIECE):
            yield part
            continue
        held.append(part.text)
        num_held += len(part.text)
        if part.ends_document:
            *pieces, last = _pieces("".join(held), cutter)
            yield from map(Part, pieces)
            yield Part(last, ends_document=True, has_end=part.has_end)
            held, num_held, enough = [], 0, 2 * PIECE
        elif num_held >= enough and not cutter.reason:
            *pieces, last = _pieces("".join(held), cutter)
            yield from map(Part, pieces)
            held, num_held, enough = [last], len(last), max(2 * PIECE, 2 * len(last))


def _pieces(text: str, cutter: Cutter) -> list[str]:
    """Return a text in pieces; the last one may be empty."""
    found, begin, width = [], 0, PIECE
    while len(text) - begin > width and not cutter.reason:
        place = cutter.find(text[begin : begin + width], 1)
        if place is None:
            width *= 2
            continue
        found.append(text[begin : begin + place])
        begin, width = begin + place, PIECE
    if len(text) - begin > _LARGE:
        why = cutter.reason or "there is no space between two letters, and no line that begins with one"
        _LOG.warning("%d characters of text are encoded in one piece, since %s", len(text) - begin, why)
    return [*found, text[begin:]]


def _in_blocks(parts: Iterable[Part]) -> Iterator[list[Part]]:
    """Yield parts, so many together that all cores have work."""
    enough = min(max(_LEAST_BLOCK, PIECE * _PIECES_PER_CORE * (os.cpu_count() or 1)), _MOST_BLOCK)
    block: list[Part] = []
    size = 0
    for part in parts:
        block.append(part)
        size += len(part.text) + 16  # what an empty one costs
        if size >= enough:
            yield block
            block, size = [], 0
    if block:
        yield block
