"""Check prompts against a model's vocabulary and length. The engine and the HTTP server share these checks."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass

from whet.errors import RequestError

TOO_LONG = "context_length_exceeded"  # OpenAI's error code


@dataclass(frozen=True, kw_only=True)
class RequestLimits:
    """Hold the limits of one model: the tokens of a prompt and its output together, and those of the vocabulary."""

    max_model_len: int
    vocab_size: int

    def check_tokens(self, token_ids: Sequence[int], param: str = "prompt") -> None:
        """Raise RequestError about the field `param` unless all token ids, of any type, are in the vocabulary."""
        try:
            is_known = not token_ids or (min(token_ids) >= 0 and max(token_ids) < self.vocab_size)
        except TypeError as error:
            raise RequestError("token ids must be whole numbers", param=param) from error
        if not is_known:
            wrong = next(token_id for token_id in token_ids if not 0 <= token_id < self.vocab_size)
            raise RequestError(
                f"the model has no token {wrong}: give tokens from 0 to {self.vocab_size - 1}", param=param
            )

    def prompt_ids(self, prompt: Sequence[int]) -> list[int]:
        """Return the token ids of a prompt.

        Raises:
            RequestError: There are none, or one is not in the model's vocabulary.
        """
        try:
            token_ids = list(map(operator.index, prompt))
        except TypeError as error:
            message = "a prompt is a text or a list of token ids, which are whole numbers"
            raise RequestError(message, param="prompt") from error
        if not token_ids:
            raise RequestError("the prompt is empty: give at least one token", param="prompt")
        self.check_tokens(token_ids)
        return token_ids

    def check_bytes(self, text: str, most: int | None, param: str = "prompt") -> None:
        """Raise RequestError if a text has more than `most` bytes of UTF-8 (None: no limit), before it is tokenised."""
        if most is None or 4 * len(text) <= most:  # a character has up to four bytes
            return
        num_bytes = len(text.encode(errors="replace"))
        if num_bytes > most:
            message = (
                f"the model takes {self.max_model_len} tokens, so at most {most} bytes of text; this has {num_bytes}"
            )
            raise RequestError(message, param=param, code=TOO_LONG)

    def check_length(self, num_prompt: int, max_tokens: int | None) -> None:
        """Raise RequestError unless a prompt and its output (`max_tokens`, or one token) fit into the context."""
        if num_prompt + (1 if max_tokens is None else max_tokens) > self.max_model_len:
            asked = f"{num_prompt} in the prompt" + (f" and {max_tokens} to be generated" if max_tokens else "")
            message = f"the model takes {self.max_model_len} tokens, and this asks for {asked}"
            raise RequestError(message, param="prompt", code=TOO_LONG)
