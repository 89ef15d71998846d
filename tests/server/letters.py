"""A tokenizer of 40 tokens, each a letter or so: enough for an engine to have text."""

from collections.abc import Sequence

EOS = 39
ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789 .!"


class Letters:
    """Stands in for whet.server.text.Tokenizer. Token 39 ends a text, and reads as nothing."""

    vocab_size = 40
    eos_ids = frozenset({EOS})

    def check_fits(self, vocab_size: int) -> None:
        assert vocab_size == 40

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        return [ALPHABET.index(letter) for letter in text]

    def most_bytes(self, num_tokens: int) -> int | None:
        return None

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(ALPHABET[token_id] for token_id in token_ids if token_id != EOS)

    def detokenizer(self) -> "OneByOne":
        return OneByOne(self)


class OneByOne:
    def __init__(self, letters: Letters) -> None:
        self._letters = letters

    def add(self, token_ids: Sequence[int]) -> str:
        return self._letters.decode(token_ids)

    def finish(self) -> str:
        return ""
