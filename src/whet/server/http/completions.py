"""Write the answers of POST /v1/completions: text that continues a prompt."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from whet.server.completion import Delta
from whet.server.http.answer import Writer
from whet.server.http.logprobs import CompletionLogprobs
from whet.server.http.protocol import CompletionRequest
from whet.server.request import FinishReason
from whet.server.sampling_params import SamplingParams
from whet.server.text import Tokenizer

DEFAULT_MAX_TOKENS = 16


@dataclass
class _Choice:
    """Hold what has been generated so far for one choice.

    Attributes:
        echoed: The prompt's text, if it is to be echoed and has not been sent yet; else empty.
        logprobs: None if the request did not ask for them.
        text: The pieces of text; unused in a stream.
        lists: The log-probabilities; unused in a stream.
    """

    prompt_ids: Sequence[int]
    echoed: str
    logprobs: CompletionLogprobs | None
    text: list[str] = field(default_factory=list)
    lists: dict[str, list[Any]] = field(default_factory=dict)
    finish_reason: FinishReason | None = None


class CompletionWriter(Writer):
    """Write the answer to a request, given each prompt's text, to be echoed and to count text offsets from."""

    def __init__(
        self,
        body: CompletionRequest,
        prompt_ids: Sequence[Sequence[int]],
        texts: Sequence[str],
        tokenizer: Tokenizer,
        model: str,
    ) -> None:
        super().__init__(body, "cmpl", "text_completion", model)
        self._body = body
        self._choices = [
            _Choice(ids, text if body.echo else "", _logprobs(body, tokenizer, text))
            for ids, text in zip(prompt_ids, texts, strict=True)
            for _ in range(body.num_choices)
        ]

    def add(self, choice: int, delta: Delta) -> list[dict[str, Any]]:
        state = self._choices[choice]
        self.usage.add(choice, delta)
        text, state.echoed = state.echoed + delta.text, ""
        logprobs = self._of_tokens(state, delta)
        state.finish_reason = delta.finish_reason
        if self._body.stream:
            # A token without text (half a character, or text held back) is sent too: clients see when it was generated.
            if not (text or logprobs or delta.token_ids or delta.finish_reason):
                return []
            return [self.chunk(_choice(choice, text, logprobs, delta.finish_reason))]
        state.text.append(text)
        for name, values in (logprobs or {}).items():
            state.lists.setdefault(name, []).extend(values)
        return []

    def choices(self) -> list[dict[str, Any]]:
        return [
            _choice(index, "".join(state.text), state.lists or None, state.finish_reason)
            for index, state in enumerate(self._choices)
        ]

    def _of_tokens(self, state: _Choice, delta: Delta) -> dict[str, Any] | None:
        if state.logprobs is None:
            return None
        token_ids = [*(() if delta.prompt_logprobs is None else state.prompt_ids), *delta.token_ids]
        found = [*(delta.prompt_logprobs or ()), *(delta.logprobs or ())]
        return state.logprobs.of(token_ids, found) if token_ids else None


def completion_params(body: CompletionRequest, choice: int) -> SamplingParams:
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    prompt_logprobs = body.logprobs if body.echo else None
    return body.sampling_params(
        max_tokens=max_tokens, logprobs=body.logprobs, prompt_logprobs=prompt_logprobs, choice=choice
    )


def _logprobs(body: CompletionRequest, tokenizer: Tokenizer, text: str) -> CompletionLogprobs | None:
    if body.logprobs is None:
        return None
    # Text offsets count from the beginning of the prompt, even if it is not echoed.
    return CompletionLogprobs(tokenizer, 0 if body.echo else len(text))


def _choice(
    index: int, text: str, logprobs: dict[str, Any] | None, finish_reason: FinishReason | None
) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
