"""Hold a conversation with a model (whet.chat), and measure how fast its answers arrive."""

import contextlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace

from whet.errors import OptionError, RequestError
from whet.server.engine import Engine
from whet.server.options import EngineOptions
from whet.server.sampling_params import SamplingParams
from whet.server.text import Tokenizer
from whet.workloads.model_directory import model_directory


def chat(
    model: str | os.PathLike[str],
    options: EngineOptions | None = None,
    *,
    temperature: float = 0.7,
    max_tokens: int = 512,
    seed: int | None = None,
    system: str | None = None,
    complete: bool = False,
) -> "Conversation":
    """Begin a conversation with a model.

    Example:
        with whet.chat("docs-gpt") as talk:
            print(talk.answer("Hello").text)

    Args:
        model: A Hugging Face model directory, or a built-in model.
        options: How the model is loaded. Fewer bits are faster.
        temperature: 0 always takes the most probable token. Higher values give more varied answers.
        max_tokens: The most tokens of one answer.
        seed: The same seed gives the same answers.
        system: The system message, which precedes the conversation.
        complete: Continue each text as it is, without a chat template, as base models do.

    Returns:
        The conversation. It keeps the model in memory until it is closed.

    Raises:
        TargetError: The model cannot be loaded.
        OptionError: The options contradict each other, or there is too little memory.
        RequestError: A sampling option is out of range.
    """
    if complete and system is not None:
        raise OptionError("--system needs a chat template, which --complete does not use: leave out one of them")
    params = SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=seed)
    params.check(vocab_size=1)  # these parameters are checked alike for any model: do it before one is loaded
    directory = model_directory(os.fspath(model))
    tokenizer = Tokenizer(directory)
    engine = Engine(directory, options, tokenizer=tokenizer)
    return Conversation(engine, tokenizer, params, system, complete)


@dataclass
class Answer:
    """Hold the answer to one text, and how fast it came. Times are in seconds from the question; see Delta."""

    prompt: str
    text: str = ""
    finish_reason: str | None = None
    error: str | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_tokens: int = 0
    ttft_s: float | None = None
    e2e_s: float = 0.0

    @property
    def tokens_per_s(self) -> float | None:
        """Return the tokens per second after the first one, or None if there are fewer than two."""
        return tokens_per_s([self])

    def as_json(self) -> str:
        """Return the answer as one line of JSON."""
        return json.dumps(asdict(self) | {"tokens_per_s": self.tokens_per_s}, ensure_ascii=False)


@dataclass
class Conversation:
    """Hold a conversation and its answers. It `is_interrupted` if Ctrl-C ended one and nothing was typed since."""

    engine: Engine
    tokenizer: Tokenizer
    params: SamplingParams
    system: str | None
    complete: bool
    messages: list[dict[str, str]] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    is_interrupted: bool = False

    def answer(self, prompt: str, show: Callable[[str], None] = lambda text: None) -> Answer:
        """Return the model's answer, whose pieces `show` gets. Ctrl-C ends it early, as "abort", and keeps its text.

        Raises:
            RequestError: The text is too long, or the engine failed. The conversation is then unchanged.
        """
        asked = [*self.messages, {"role": "user", "content": prompt}]
        token_ids = self._encode(prompt, asked)
        answer = Answer(prompt)
        self._stream(token_ids, answer, show)
        if answer.error is not None:
            raise RequestError(answer.error)
        if not self.complete:
            self.messages = [*asked, {"role": "assistant", "content": answer.text}]
        self.answers.append(answer)
        return answer

    @property
    def has_plain_template(self) -> bool:
        """Return whether whet's plain chat template is used because the checkpoint has none."""
        return not self.complete and self.tokenizer.chat_template.is_plain

    def __enter__(self) -> "Conversation":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.engine.close()

    def reset(self) -> None:
        self.messages = []

    def _encode(self, prompt: str, messages: list[dict[str, str]]) -> list[int]:
        if self.complete:
            token_ids = self.tokenizer.encode(prompt)
        else:
            first = [] if self.system is None else [{"role": "system", "content": self.system}]
            token_ids = self.tokenizer.encode(self.tokenizer.chat([*first, *messages]), add_special=False)
        if len(token_ids) >= self.engine.max_model_len:
            what = "text" if self.complete or len(messages) == 1 else "conversation"
            advice = "/reset begins a new one" if what == "conversation" else "shorten it"
            raise RequestError(
                f"the {what} has {len(token_ids)} tokens, and the model takes {self.engine.max_model_len} "
                f"with its answer: {advice}"
            )
        return token_ids

    def _stream(self, token_ids: list[int], answer: Answer, show: Callable[[str], None]) -> None:
        """Fill in the answer while it is generated."""
        room = self.engine.max_model_len - len(token_ids)
        params = replace(self.params, max_tokens=min(self.params.max_tokens or room, room))
        with contextlib.closing(self.engine.stream(token_ids, params)) as deltas:
            try:
                for delta in deltas:
                    answer.num_tokens += len(delta.token_ids)
                    answer.text += delta.text
                    answer.num_prompt_tokens = delta.num_prompt_tokens
                    answer.num_cached_tokens = delta.num_cached_tokens
                    answer.ttft_s, answer.e2e_s = delta.ttft_s, delta.e2e_s
                    answer.finish_reason, answer.error = delta.finish_reason, delta.error
                    show(delta.text)
            except KeyboardInterrupt:
                answer.finish_reason = "abort"
                self.is_interrupted = True


def tokens_per_s(answers: Sequence[Answer]) -> float | None:
    """Return the tokens per second after each answer's first, whose time is spent on the prompt; None without any."""
    timed = [(a.num_tokens - 1, a.e2e_s - a.ttft_s) for a in answers if a.ttft_s is not None and a.num_tokens > 1]
    spent_s = sum(span_s for _, span_s in timed)
    return sum(number for number, _ in timed) / spent_s if spent_s > 0 else None
