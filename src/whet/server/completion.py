"""Describe the output of a request: piece by piece as it grows, and whole at the end."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from whet.server.request import FinishReason, TokenLogprobs


@dataclass(slots=True)
class Delta:
    """Hold what a step added to an output.

    Attributes:
        text: The text that has become certain. It holds no part of a stop string. Empty without a tokenizer.
        logprobs: One entry for each token, if they were asked for.
        prompt_logprobs: One entry for each token of the prompt, in the first delta, if asked for; the first is None.
        finish_reason: Why the output ended; None except in the last delta.
        num_cached_tokens: The tokens of the prompt that were found in the prefix cache.
        queue_s: Seconds from the arrival to the first step of the request.
        ttft_s: Seconds from the arrival to the first token, or None before it.
        e2e_s: Seconds from the arrival to this delta.
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
    queue_s: float = 0.0
    ttft_s: float | None = None
    e2e_s: float = 0.0


@dataclass(slots=True)
class Completion:
    """Hold a whole output: all its deltas joined. See Delta for the fields. ttft_s is None if there is no token."""

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
    """Join all deltas of a request to its completion.

    Raises:
        ValueError: The last delta has no finish_reason.
    """
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
