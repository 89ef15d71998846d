"""What a model can take of a request: its vocabulary and its length. The engine and the HTTP server ask the same."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass

from whet.errors import RequestError

TOO_LONG = "context_length_exceeded"  # the code by which OpenAI's clients know it


@dataclass(frozen=True, kw_only=True)
class RequestLimits:
    """The limits of one model.

    max_model_len: tokens of a prompt and its output together. vocab_size: tokens are numbers below it.
    """

    max_model_len: int
    vocab_size: int

    def check_tokens(self, token_ids: Sequence[int], param: str = "prompt") -> None:
        """Raise RequestError unless all are tokens of the model.

        Args:
            token_ids: What was given as tokens, of any type.
            param: The field of the request that they come from.
        """
        try:
            is_known = not token_ids or (min(token_ids) >= 0 and max(token_ids) < self.vocab_size)
        except TypeError as error:
            raise RequestError("tokens are whole numbers", param=param) from error
        if not is_known:
            wrong = next(token_id for token_id in token_ids if not 0 <= token_id < self.vocab_size)
            raise RequestError(
                f"token {wrong} is none of the model's, which are 0 to {self.vocab_size - 1}", param=param
            )

    def prompt_ids(self, prompt: Sequence[int]) -> list[int]:
        """Return a prompt's tokens. Raises RequestError unless there is at least one, and all are the model's."""
        try:
            token_ids = list(map(operator.index, prompt))
        except TypeError as error:
            message = "a prompt is a text or a list of token ids, which are whole numbers"
            raise RequestError(message, param="prompt") from error
        if not token_ids:
            raise RequestError("the prompt is empty: give at least one token", param="prompt")
        self.check_tokens(token_ids)
        return token_ids

    def check_bytes(self, text: str, most: int | None) -> None:
        """Raise RequestError for a text that surely has more tokens than the model takes, before it is tokenised.

        Args:
            text: A prompt.
            most: The bytes of UTF-8 that a text may have; None: any number.
        """
        if most is None or 4 * len(text) <= most:  # a character has up to four bytes
            return
        num_bytes = len(text.encode(errors="replace"))
        if num_bytes > most:
            message = (
                f"the model takes {self.max_model_len} tokens, so at most {most} bytes of text; this has {num_bytes}"
            )
            raise RequestError(message, param="prompt", code=TOO_LONG)

    def check_length(self, num_prompt: int, max_tokens: int | None) -> None:
        """Raise RequestError where a prompt and its output are too long together.

        Args:
            num_prompt: The prompt's tokens.
            max_tokens: The tokens that the output may have; None: as many as there is room for, and at least one.
        """
        if num_prompt + (1 if max_tokens is None else max_tokens) > self.max_model_len:
            asked = f"{num_prompt} in the prompt" + (f" and {max_tokens} to be made" if max_tokens else "")
            message = f"the model takes {self.max_model_len} tokens, and this asks for {asked}"
            raise RequestError(message, param="prompt", code=TOO_LONG)
