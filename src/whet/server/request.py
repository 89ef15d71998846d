"""One request: what was asked, what there is so far, and where its state lies."""

import sys
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, NamedTuple

from whet.server.grammars import Guide
from whet.server.sampling_params import SamplingParams
from whet.server.stopping import OutputText

FinishReason = Literal["stop", "length", "abort", "error"]

NO_ROW = -1
UNLIMITED = sys.maxsize


class Status(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class TokenLogprobs(NamedTuple):
    """A token's natural logarithm of its probability under the model as it is, and the most probable tokens' there."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(slots=True, eq=False)
class Request:
    """A request and the sequence that it becomes. Who changes what: the scheduler status, num_computed and blocks; the
    stepper tokens and drafts.

    max_len: tokens, prompt included, at which it ends. stop_ids: tokens that end it. Times are the engine clock's.
    """

    id: str
    prompt_ids: list[int]
    params: SamplingParams
    max_len: int
    seed: int
    stop_ids: frozenset[int] = frozenset()
    output: OutputText | None = None  # None: nobody wants text
    arrival_s: float = 0.0
    cache_salt: str = ""
    guide: Guide | None = None  # the place in the grammar of params.structure

    is_plain: bool = field(init=False)  # the most probable token, as the model gives it
    token_ids: list[int] = field(init=False)  # prompt and output
    num_prompt: int = field(init=False)
    status: Status = field(init=False, default=Status.WAITING)
    finish_reason: FinishReason | None = field(init=False, default=None)
    error: str | None = field(init=False, default=None)

    num_computed: int = field(init=False, default=0)  # tokens that the model has seen and whose state is there
    num_cached: int = field(init=False, default=0)  # of the prompt, found when it was first admitted
    num_preemptions: int = field(init=False, default=0)
    drafts: list[int] = field(init=False, default_factory=list)  # tokens guessed, to be verified in the next step

    row: int = field(init=False, default=NO_ROW)
    blocks: list[int] = field(init=False, default_factory=list)
    capacity: int = field(init=False, default=0)  # tokens that its blocks hold
    block_hashes: list[bytes] = field(init=False, default_factory=list)  # of the full blocks of token_ids, as needed
    num_published: int = field(init=False, default=0)  # blocks that others may use too

    prompt_logprobs: list[TokenLogprobs | None] | None = field(init=False, default=None)
    admitted_s: float | None = field(init=False, default=None)
    first_token_s: float | None = field(init=False, default=None)
    last_token_s: float | None = field(init=False, default=None)  # where somebody watches
    has_reported: bool = field(init=False, default=False)  # a delta of it has been handed out

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_ids)
        self.num_prompt = len(self.prompt_ids)
        self.is_plain = self.params.is_plain
        if self.params.prompt_logprobs is not None:
            self.prompt_logprobs = [None]  # nothing comes before the first token

    @property
    def num_output(self) -> int:
        """Tokens of the output so far."""
        return len(self.token_ids) - self.num_prompt

    @property
    def is_finished(self) -> bool:
        return self.status is Status.FINISHED

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether some of the prompt's are still to come; then its tokens must be computed, not found."""
        return self.prompt_logprobs is not None and len(self.prompt_logprobs) < self.num_prompt

    def take(self, token_ids: list[int]) -> tuple[int, str]:
        """Append new tokens up to the one that ends the request, and say with `finish_reason` how it ended.

        Returns how many were taken, and the text that may be shown now.
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
            if self.guide is not None and self.finish_reason is None and self.guide.consume(token_id):
                self.finish_reason = "stop"
            if self.finish_reason is None and num_tokens >= self.max_len:
                self.finish_reason = "length"
            if self.finish_reason is not None:
                return count, text + self.rest_of_text()
        return len(token_ids), text

    def rest_of_text(self) -> str:
        """What was held back, as no more comes."""
        return self.output.rest() if self.output is not None else ""
