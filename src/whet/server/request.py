"""Describe one request: its parameters, its output so far, and where its state is kept."""

import sys
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Literal, NamedTuple

from whet.errors import RequestError
from whet.server.grammars import Guide
from whet.server.sampling_params import SamplingParams
from whet.server.stopping import OutputText

if TYPE_CHECKING:  # they import torch
    from collections.abc import Callable

    from whet.models.memory_bank.state import LtmState
    from whet.server.beginnings import Beginning

FinishReason = Literal["stop", "length", "abort", "error"]

NO_ROW = -1
UNLIMITED = sys.maxsize


class Status(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class TokenLogprobs(NamedTuple):
    """Hold log-probabilities of a token and of the most probable tokens in its place (`top`, the most probable first).

    They are natural logarithms, and computed before temperature, penalties and truncation.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(slots=True, eq=False)
class Request:
    """Hold a request and its sequence of tokens.

    The scheduler changes status, num_computed and blocks. The stepper changes tokens and drafts. Times are in seconds
    on the engine's clock.

    Attributes:
        max_len: The request ends when it has so many tokens, prompt included.
        output: The text of the output, or None if no text is wanted.
    """

    id: str
    prompt_ids: list[int]
    params: SamplingParams
    max_len: int
    seed: int
    stop_ids: frozenset[int] = frozenset()
    output: OutputText | None = None
    arrival_s: float = 0.0
    cache_salt: str = ""
    guide: Guide | None = None  # the place in the grammar of params.structure
    beginning: "Beginning | None" = None  # what it begins at; its tokens stand first in prompt_ids, as UNREAD
    on_state: "Callable[[LtmState], None] | None" = None  # takes what the model remembers of the prompt

    is_plain: bool = field(init=False)  # whether it always takes the most probable token of the unchanged logits
    token_ids: list[int] = field(init=False)  # prompt and output
    num_prompt: int = field(init=False)
    status: Status = field(init=False, default=Status.WAITING)
    finish_reason: FinishReason | None = field(init=False, default=None)
    error: str | None = field(init=False, default=None)

    num_computed: int = field(init=False, default=0)  # tokens that the model has read, and whose state is kept
    num_cached: int = field(init=False, default=0)  # prompt tokens found in the cache at the first admission
    num_preemptions: int = field(init=False, default=0)
    drafts: list[int] = field(init=False, default_factory=list)  # proposed tokens; the next step verifies them

    row: int = field(init=False, default=NO_ROW)
    blocks: list[int] = field(init=False, default_factory=list)
    capacity: int = field(init=False, default=0)  # tokens for which its blocks have room
    block_hashes: list[bytes] = field(init=False, default_factory=list)  # hashes of its full blocks, as far as needed
    num_published: int = field(init=False, default=0)  # blocks that other requests may share
    parting: int = field(init=False, default=0)  # first tokens of the prompt, in whole blocks, that other prompts had
    rolling_snapshot: bytes | None = field(init=False, default=None)  # the hash of the latest one in the output

    prompt_logprobs: list[TokenLogprobs | None] | None = field(init=False, default=None)
    admitted_s: float | None = field(init=False, default=None)
    first_token_s: float | None = field(init=False, default=None)
    last_token_s: float | None = field(init=False, default=None)  # only set if the engine has observers
    has_reported: bool = field(init=False, default=False)  # whether a delta of it has been handed out

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_ids)
        self.num_prompt = len(self.prompt_ids)
        self.is_plain = self.params.is_plain
        if self.params.prompt_logprobs is not None:
            self.prompt_logprobs = [None]  # the first token has no probability: nothing precedes it

    @property
    def num_before(self) -> int:
        """Return the tokens that were read before the request, of which the state alone is there."""
        return 0 if self.beginning is None else self.beginning.num_tokens

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - self.num_prompt

    @property
    def is_finished(self) -> bool:
        return self.status is Status.FINISHED

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Return whether log-probabilities of the prompt are missing. Its tokens must then be computed, not cached."""
        return self.prompt_logprobs is not None and len(self.prompt_logprobs) < self.num_prompt

    def take(self, token_ids: list[int]) -> tuple[int, str]:
        """Append new tokens up to the one that ends the request, and then set `finish_reason`.

        Return the number of appended tokens, and the text that may be shown now.
        """
        text, min_len = "", self.num_prompt + self.params.min_tokens
        for count, token_id in enumerate(token_ids, start=1):
            self.token_ids.append(token_id)
            num_tokens = len(self.token_ids)
            if token_id in self.stop_ids and num_tokens >= min_len:
                self.finish_reason = "stop"
            elif self.output is not None:
                text += self.output.add(token_id, may_stop=num_tokens >= min_len)
                if self.output.is_stopped:
                    self.finish_reason = "stop"
            if self.guide is not None and self.finish_reason is None:
                try:
                    self.finish_reason = "stop" if self.guide.consume(token_id) else None
                except RequestError as error:  # a limit of the grammar: this request alone ends
                    self.finish_reason, self.error = "error", str(error)
            if self.finish_reason is None and num_tokens >= self.max_len:
                self.finish_reason = "length"
            if self.finish_reason is not None:
                return count, text + self.rest_of_text()
        return len(token_ids), text

    def rest_of_text(self) -> str:
        """Return the text that was held back. Call it when no more tokens follow."""
        return self.output.rest() if self.output is not None else ""
