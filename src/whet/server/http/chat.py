"""Write the answers of POST /v1/chat/completions: the next message of a conversation."""

from dataclasses import dataclass, field
from typing import Any

from whet.server.completion import Delta
from whet.server.http.answer import Writer
from whet.server.http.chat_tools import Parts
from whet.server.http.logprobs import chat_logprobs
from whet.server.http.protocol import ChatRequest
from whet.server.http.tools import ToolUse
from whet.server.request import FinishReason
from whet.server.sampling_params import SamplingParams
from whet.server.text import Tokenizer


@dataclass
class _Choice:
    """Hold what has been generated so far for one choice."""

    has_started: bool = False
    text: list[str] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    parts: Parts | None = None  # where tools may be called


class ChatWriter(Writer):
    def __init__(self, body: ChatRequest, tokenizer: Tokenizer, model: str, tools: ToolUse | None = None) -> None:
        super().__init__(body, "chatcmpl", "chat.completion.chunk" if body.stream else "chat.completion", model)
        self._body = body
        self._tokenizer = tokenizer
        parts = (None if tools is None else Parts(tools) for _ in range(body.num_choices))
        self._choices = [_Choice(parts=one) for one in parts]

    def add(self, choice: int, delta: Delta) -> list[dict[str, Any]]:
        state = self._choices[choice]
        self.usage.add(choice, delta)
        logprobs = None
        if self._body.logprobs and delta.logprobs:
            logprobs = chat_logprobs(self._tokenizer, delta.logprobs)
        state.finish_reason = delta.finish_reason
        if self._body.stream:
            return self._chunks(choice, state, delta, logprobs)
        if state.parts is not None:
            state.parts.add(delta)
        state.text.append(delta.text)
        state.logprobs.extend(logprobs["content"] if logprobs else ())
        return []

    def choices(self) -> list[dict[str, Any]]:
        choices = []
        for index, state in enumerate(self._choices):
            message = {"role": "assistant", "content": "".join(state.text), "refusal": None}
            finish_reason: str | None = state.finish_reason
            if state.parts is not None:
                message = {"role": "assistant", **state.parts.message}
                finish_reason = state.parts.finish_reason(finish_reason)
            logprobs = {"content": state.logprobs, "refusal": None} if self._body.logprobs else None
            choices.append({"index": index, "message": message, "logprobs": logprobs, "finish_reason": finish_reason})
        return choices

    def _chunks(
        self, index: int, state: _Choice, delta: Delta, logprobs: dict[str, Any] | None
    ) -> list[dict[str, Any]]:
        """Return the chunks for one delta. The role comes first, then text, and at the very end the finish reason.

        A token without text is sent too, so that clients see when it was generated. It may be half a character, or its
        text may be held back because it could begin a stop string.
        """
        contents: list[tuple[dict[str, Any], dict[str, Any] | None, str | None]] = []
        if not state.has_started:
            state.has_started = True
            contents.append(({"role": "assistant", "content": ""}, None, None))
        deltas = [{"content": delta.text}] if state.parts is None else state.parts.add(delta)
        if delta.text or logprobs or (delta.token_ids and delta.finish_reason is None):
            first, *others = deltas or [{"content": ""}]
            contents.append((first, logprobs, None))
        else:
            others = deltas if state.parts is not None else []
        contents.extend((one, None, None) for one in others)
        if delta.finish_reason is not None:
            finish_reason = delta.finish_reason
            contents.append(
                ({}, None, finish_reason if state.parts is None else state.parts.finish_reason(finish_reason))
            )
        return [
            self.chunk({"index": index, "delta": content, "logprobs": found, "finish_reason": reason})
            for content, found, reason in contents
        ]


def chat_params(body: ChatRequest, choice: int, *, tools: ToolUse | None, tokenizer: Tokenizer) -> SamplingParams:
    """Return the sampling parameters of a choice. Without a number of tokens, it may fill the model's context."""
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    params = body.sampling_params(max_tokens=max_tokens, logprobs=body.num_logprobs, choice=choice)
    return params if tools is None else tools.params(params, tokenizer)
