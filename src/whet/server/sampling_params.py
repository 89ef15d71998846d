"""Describe how the tokens of a request are chosen, and when it ends."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from whet.errors import RequestError
from whet.server.output_constraint import OutputConstraint

MAX_LOGPROBS = 100  # alternatives for each token; each one is an object that is kept and sent
MAX_STOP_STRINGS = 64
MAX_TEMPERATURE = 100.0
LEAST_TEMPERATURE = 1e-5  # below it, the most probable token is taken: logits divided by less could overflow float32
LEAST_REPETITION_PENALTY, MAX_REPETITION_PENALTY = 0.01, 100.0  # with a wider range, logits could overflow float32
_MAX_PENALTY = 2.0
_MAX_BIAS = 1e30  # safely within float32's range


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Say how to choose the tokens of one request. Values are not checked here, but by `check`.

    Attributes:
        temperature: 0 (or below 1e-5) takes the most probable token; 1 samples from the model's own distribution.
        top_k: Sample only from the k most probable tokens; 0 or -1 for all.
        top_p: Sample only from the most probable tokens whose probabilities add up to this.
        min_p: Sample only from tokens with at least this share of the highest probability.
        presence_penalty: Subtracted from the logit of each token that occurs in the output; -2 to 2.
        frequency_penalty: Subtracted as well, once for each occurrence; -2 to 2.
        repetition_penalty: Positive logits of tokens in the prompt or output are divided by this, and negative ones
            multiplied; 0.01 to 100.
        seed: The same seed gives the same tokens, whatever other requests run. None for a random seed.
        max_tokens: The most tokens of the output; None for as many as the model takes.
        min_tokens: Before so many tokens, neither stop strings nor end tokens end the output.
        stop: Strings that end the output. They are not part of its text.
        stop_token_ids: Tokens that end the output, besides the model's own end tokens.
        ignore_eos: The model's own end tokens do not end the output.
        logprobs: Return the log-probability of each output token, and of this many most probable tokens. None for no
            log-probabilities.
        prompt_logprobs: The same for the tokens of the prompt.
        logit_bias: Numbers added to the logits of these tokens.
        structure: What the text must match. Each token is chosen among those that it allows.
        shown_token_ids: Special tokens that are part of the text.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    structure: OutputConstraint | None = None
    shown_token_ids: tuple[int, ...] = ()

    @property
    def is_greedy(self) -> bool:
        """Return whether the most probable token is always taken."""
        return self.temperature < LEAST_TEMPERATURE

    @property
    def is_penalised(self) -> bool:
        """Return whether earlier tokens change the logits."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0 or self.repetition_penalty != 1

    @property
    def is_plain(self) -> bool:
        """Return whether the most probable token of the model's unchanged logits is always taken."""
        return self.is_greedy and not (self.is_penalised or self.logit_bias or self.min_tokens)

    def check(self, vocab_size: int) -> None:
        """Check all values.

        Raises:
            RequestError: A value is out of range. The error is about the first one.
        """
        _number("temperature", self.temperature, 0, MAX_TEMPERATURE)
        _whole("top_k", self.top_k, -1)
        _number("top_p", self.top_p, 0, 1, open_below=True)
        _number("min_p", self.min_p, 0, 1)
        _number("presence_penalty", self.presence_penalty, -_MAX_PENALTY, _MAX_PENALTY)
        _number("frequency_penalty", self.frequency_penalty, -_MAX_PENALTY, _MAX_PENALTY)
        _number("repetition_penalty", self.repetition_penalty, LEAST_REPETITION_PENALTY, MAX_REPETITION_PENALTY)
        if self.seed is not None:
            _whole("seed", self.seed, -(2**63), 2**64 - 1)
        _whole("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None:
            _whole("max_tokens", self.max_tokens, 0)
            if self.min_tokens > self.max_tokens:
                message = f"min_tokens={self.min_tokens} is above max_tokens={self.max_tokens}"
                raise RequestError(message, param="min_tokens")
        strings = _several("stop", self.stop)
        if len(strings) > MAX_STOP_STRINGS or not all(isinstance(s, str) and s for s in strings):
            raise RequestError(f"stop: up to {MAX_STOP_STRINGS} strings that are not empty", param="stop")
        for name, count in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if count is not None:
                _whole(name, count, 0, min(MAX_LOGPROBS, vocab_size))
        for token_id in _several("stop_token_ids", self.stop_token_ids):
            _whole("stop_token_ids", token_id, 0, vocab_size - 1, what=": a token")
        for token_id in _several("shown_token_ids", self.shown_token_ids):
            _whole("shown_token_ids", token_id, 0, vocab_size - 1, what=": a token")
        if not isinstance(self.logit_bias, Mapping):
            message = f"logit_bias={self.logit_bias!r}: it maps tokens to numbers"
            raise RequestError(message, param="logit_bias")
        for token_id, bias in self.logit_bias.items():
            _whole("logit_bias", token_id, 0, vocab_size - 1, what=": a token")
            _number("logit_bias", bias, -_MAX_BIAS, _MAX_BIAS, what=f" of {token_id}")
        if self.structure is not None:
            if not isinstance(self.structure, OutputConstraint):
                raise RequestError(f"structure={self.structure!r}: it is a whet.OutputConstraint", param="structure")
            self.structure.check()


def _several(name: str, values: Sequence[Any]) -> Sequence[Any]:
    if isinstance(values, (tuple, list)):
        return values
    raise RequestError(f"{name}={values!r}: it is a tuple or a list", param=name)


def _number(name: str, value: float, low: float, high: float, *, open_below: bool = False, what: str = "") -> None:
    """Raise RequestError unless the value is a number in the range. The message continues `name` with `what`."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and math.isfinite(value) and low <= value <= high and not (open_below and value == low):
        return
    wanted = f"a number from {low:g}{' (not itself)' if open_below else ''} to {high:g}"
    raise RequestError(f"{name}{what}={value!r}: it is {wanted}", param=name)


def _whole(name: str, value: int, low: int, high: int | None = None, *, what: str = "") -> None:
    """Raise RequestError unless the value is a whole number in the range. The message continues `name` with `what`."""
    if isinstance(value, int) and not isinstance(value, bool) and low <= value and (high is None or value <= high):
        return
    wanted = f"of at least {low}" if high is None else f"from {low} to {high}"
    raise RequestError(f"{name}{what}={value!r}: it is a whole number {wanted}", param=name)
