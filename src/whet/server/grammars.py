"""Compile structures to grammars over a tokenizer's vocabulary, and keep the place of a request in its grammar.

The library is llguidance: it takes regular expressions and grammars, and computes the allowed tokens on the fly.
Source: github.com/guidance-ai/llguidance.
"""

import threading
import weakref
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from whet.errors import MissingExtra, RequestError
from whet.server.compiling import Tokens, matcher, on_large_stack, short, tried, vocabulary
from whet.server.output_constraint import OutputConstraint
from whet.server.text import Tokenizer

CANNOT_GO_ON = "the structure cannot go on"  # how the error of a request begins whose structure is at fault
_MOST_KEPT = 64  # compiled structures
_BEFORE = "\x02"  # a character that no token continues


class Guide:
    """A guide knows the place of one request in its grammar. It is used by one thread at a time."""

    def __init__(self, matcher: Any) -> None:
        self.matcher = matcher
        self.error: str | None = None  # why no mask can be had any more

    def consume(self, token_id: int) -> bool:
        """Go on by a token of the output, and return whether it is complete: nothing can follow.

        Raises:
            RequestError: The grammar does not allow the token.
        """
        if not self.matcher.consume_token(token_id):
            raise RequestError(f"{CANNOT_GO_ON}: {short(self.matcher.get_error())}")
        if not self.matcher.is_stopped():
            return False
        if not self.matcher.is_accepting():
            raise RequestError(f"{CANNOT_GO_ON}: nothing can follow, and it is not complete")
        return True

    def has_failed(self) -> bool:
        """Return whether something went wrong with the last mask, and note in `error` what."""
        if self.error is None and self.matcher.is_error():
            self.error = f"{CANNOT_GO_ON}: {short(self.matcher.get_error())}"
        return self.error is not None

    def copy(self) -> "Guide":
        return Guide(self.matcher.deep_copy())

    def num_valid(self, token_ids: Sequence[int]) -> int:
        """Return how many of these tokens, one after another, the grammar allows next."""
        return int(self.matcher.validate_tokens(list(token_ids)))


class Grammars:
    """Compile structures for one vocabulary, and keep those that were used last. From any thread.

    Nothing is imported or built before the first one. Beside the `vocab_size` logits, one more token stands for the end
    wherever a grammar allows it, so that the end does not depend on which of the model's tokens end an output.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._library: Any = None
        self._vocabulary: Any = None
        self._described: dict[str, object] = {}
        self._building = threading.Lock()
        this = weakref.proxy(self)  # a vocabulary is large: the cache must not keep it alive
        self._compiled = lru_cache(_MOST_KEPT)(lambda structure: this._compile(structure))

    def guide(self, structure: OutputConstraint) -> Guide:
        """Return the beginning of a structure's grammar, compiled now unless it was before.

        Raises:
            RequestError: The structure is none, is too large, or uses what cannot be enforced.
            MissingExtra: llguidance is not installed.
        """
        return Guide(self._compiled(structure).deep_copy())

    def _compile(self, structure: OutputConstraint) -> Any:
        structure.check()
        self._build()
        written = tried(structure, self._described)
        return on_large_stack(lambda: matcher(self._library, self._vocabulary, structure, written))

    def _build(self) -> None:
        """Import the library and build the vocabulary, once."""
        with self._building:
            if self._vocabulary is not None:
                return
            try:
                import llguidance
            except ImportError as error:
                raise MissingExtra("llguidance", "serve", "structured output") from error
            self._library = llguidance
            tokens = _Vocabulary(self._tokenizer, self._vocab_size)
            special = {number: tokens.tokens[number].hex() for number in tokens.special_token_ids[:-1]}
            self._described = {"size": self._vocab_size, "special": special}
            self._vocabulary = vocabulary(llguidance, tokens)


class _Vocabulary(Tokens):
    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        special_ids = [token_id for token_id in tokenizer.special_ids if token_id < vocab_size]
        super().__init__([tokenizer.token_bytes(token_id) for token_id in range(vocab_size)], special_ids)
        self._encode, self._special_ids = tokenizer.encode, tokenizer.special_ids

    def __call__(self, text: str) -> list[int]:
        """Return the tokens of a text that a grammar leaves no choice about: as they stand in the midst of a text.

        Many tokenizers put a space before a text, or find special tokens in it. Then the longest tokens are taken.
        """
        for before in ("", _BEFORE):
            token_ids = self._encode(before + text, False)
            if before and token_ids:
                del token_ids[0]
            written = b"".join(self.tokens[token_id] for token_id in token_ids)
            if written == text.encode() and self._special_ids.isdisjoint(token_ids):
                return token_ids
        return self.greedy(text)
