"""Log-probabilities as OpenAI's two kinds of answer write them."""

from collections.abc import Sequence
from typing import Any

from whet.server.request import TokenLogprobs
from whet.server.text import Detokenizer, Tokenizer

_LEAST = -9999.0  # JSON has no minus infinity


class CompletionLogprobs:
    """For /v1/completions: four lists side by side. One for each choice; it knows where the text stands."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._detokenizer: Detokenizer = tokenizer.detokenizer()
        self._num_characters = 0

    def skip(self, text: str) -> None:
        """Text that stands before the first token."""
        self._num_characters += len(text)

    def of(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None]) -> dict[str, Any]:
        """The next tokens. None: there is no probability, as for the first token of a prompt."""
        tokens, offsets = [], []
        for token_id in token_ids:
            tokens.append(self._tokenizer.token_text(token_id))
            offsets.append(self._num_characters)
            self._num_characters += len(self._detokenizer.add((token_id,)))
        return {
            "tokens": tokens,
            "token_logprobs": [_finite(one.logprob) if one else None for one in logprobs],
            "top_logprobs": [self._top(one) if one else None for one in logprobs],
            "text_offset": offsets,
        }

    def _top(self, one: TokenLogprobs) -> dict[str, float]:
        """The most probable first. Two tokens may read the same (parts of characters): the more probable one stands."""
        found: dict[str, float] = {}
        for token_id, logprob in (*one.top, (one.token_id, one.logprob)):
            found.setdefault(self._tokenizer.token_text(token_id), _finite(logprob))
        return found


def chat_logprobs(tokenizer: Tokenizer, logprobs: Sequence[TokenLogprobs]) -> dict[str, Any]:
    """For /v1/chat/completions: an object for each token."""
    content = []
    for one in logprobs:
        top = [_entry(tokenizer, token_id, logprob) for token_id, logprob in one.top]
        content.append({**_entry(tokenizer, one.token_id, one.logprob), "top_logprobs": top})
    return {"content": content, "refusal": None}


def _entry(tokenizer: Tokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    return {
        "token": tokenizer.token_text(token_id),
        "logprob": _finite(logprob),
        "bytes": list(tokenizer.token_bytes(token_id)),
    }


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST)
