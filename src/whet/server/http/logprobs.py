"""Write log-probabilities in the forms of OpenAI's two kinds of answer."""

from collections.abc import Sequence
from typing import Any

from whet.server.request import TokenLogprobs
from whet.server.text import Detokenizer, Tokenizer

_LEAST = -9999.0  # JSON has no minus infinity


class CompletionLogprobs:
    """Write the log-probabilities of a choice of /v1/completions as four lists, with text offsets from `offset` on."""

    def __init__(self, tokenizer: Tokenizer, offset: int = 0) -> None:
        self._tokenizer = tokenizer
        self._detokenizer: Detokenizer = tokenizer.detokenizer()
        self._num_characters = offset

    def of(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None]) -> dict[str, Any]:
        """Return the four lists for the next tokens. None stands for a token without probability: a prompt's first."""
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
        """Return the alternatives, the most probable first. Of two with the same text, the more probable one is kept.

        Tokens that are parts of a character can have the same text.
        """
        found: dict[str, float] = {}
        for token_id, logprob in (*one.top, (one.token_id, one.logprob)):
            found.setdefault(self._tokenizer.token_text(token_id), _finite(logprob))
        return found


def chat_logprobs(tokenizer: Tokenizer, logprobs: Sequence[TokenLogprobs]) -> dict[str, Any]:
    """Return the log-probabilities in the form of /v1/chat/completions, with an object for each token."""
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
