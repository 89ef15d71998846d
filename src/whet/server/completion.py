"""What a request gives back: piece by piece as it grows, and whole at the end."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from whet.server.request import FinishReason, TokenLogprobs


@dataclass(slots=True)
class Delta:
    """What a step added to an output. The last one has a finish_reason, and `error` says why where that is "error".

    text: of these tokens as far as it is certain, none of it part of a stop string; empty without a tokenizer.
    logprobs: one for each token, where they were asked for. prompt_logprobs: in the first delta; None for the first
    token, before which there is nothing. num_cached_tokens: of the prompt, that did not have to be computed.
    """

    request_id: str
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    finish_reason: FinishReason | None = None
    error: str | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    queue_s: float = 0.0  # from arrival to the first step that it was in
    ttft_s: float | None = None  # from arrival to the first token
    e2e_s: float = 0.0  # from arrival to this delta


@dataclass(slots=True)
class Completion:
    """A whole output: its deltas joined. Times in seconds since the request arrived; ttft_s None without any token."""

    request_id: str
    token_ids: list[int]
    text: str
    logprobs: list[TokenLogprobs] | None
    prompt_logprobs: list[TokenLogprobs | None] | None
    finish_reason: FinishReason
    error: str | None
    num_prompt_tokens: int
    num_cached_tokens: int
    queue_s: float
    ttft_s: float | None
    e2e_s: float


def join(deltas: Iterable[Delta]) -> Completion:
    """The completion that all deltas of a request make."""
    deltas = list(deltas)
    first, last = deltas[0], deltas[-1]
    if last.finish_reason is None:
        raise ValueError(f"{last.request_id} has not ended")
    has_logprobs = any(delta.logprobs is not None for delta in deltas)
    return Completion(
        request_id=last.request_id,
        token_ids=[token_id for delta in deltas for token_id in delta.token_ids],
        text="".join(delta.text for delta in deltas),
        logprobs=[entry for delta in deltas for entry in delta.logprobs or ()] if has_logprobs else None,
        prompt_logprobs=first.prompt_logprobs,
        finish_reason=last.finish_reason,
        error=last.error,
        num_prompt_tokens=last.num_prompt_tokens,
        num_cached_tokens=last.num_cached_tokens,
        queue_s=last.queue_s,
        ttft_s=last.ttft_s,
        e2e_s=last.e2e_s,
    )
