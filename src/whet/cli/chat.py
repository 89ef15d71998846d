"""whet chat: talk to a model in the terminal."""

import contextlib
import json
import sys
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated

import typer
from rich.console import Console

from whet.errors import OptionError, RequestError
from whet.figures import DASH, digits, duration
from whet.models.options import Dtype, WeightBits
from whet.server.engine import Engine
from whet.server.sampling_params import SamplingParams
from whet.server.text import Tokenizer
from whet.workloads import model_directory

_FAILED = 2
_HELP = """/reset  forget the conversation
/stats  the last answer's figures, and the engine's
/quit   leave; so does Ctrl-D
Ctrl-C stops an answer; a second one leaves."""


def chat(
    model: Annotated[str, typer.Argument(metavar=model_directory.METAVAR, help=model_directory.HELP)],
    weights: Annotated[WeightBits, typer.Option(help="how the weights are kept: fewer bits, faster")] = "as-is",
    dtype: Annotated[Dtype, typer.Option(help="number format of what stays as it is")] = "bf16",
    temperature: Annotated[float, typer.Option(help="0: always the most probable token; higher: more varied")] = 0.7,
    max_tokens: Annotated[int, typer.Option(min=1, help="tokens of one answer at most")] = 512,
    seed: Annotated[
        int | None, typer.Option(help="the same seed gives the same answers", show_default="random")
    ] = None,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="what the model is told before everything else")
    ] = None,
    complete: Annotated[
        bool, typer.Option("--complete", help="go on with each text as it stands, without a chat template: base models")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object for each answer, at its end")] = False,
) -> None:
    """Talk to a model. Lines that are piped in are answered one by one."""
    if complete and system is not None:
        raise OptionError("--system belongs to a conversation: leave it out, or leave out --complete")
    params = SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=seed)
    params.check(vocab_size=1)  # what is wrong with them is wrong for any model: say so before one is loaded
    notes = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    directory = model_directory.model_directory(model)
    tokenizer = Tokenizer(directory)
    with notes.status("loading the model"):
        engine = Engine(directory, tokenizer=tokenizer, weights=weights, dtype=dtype)
    with contextlib.closing(engine):
        talk = _Talk(engine, tokenizer, params, system, complete)
        if not complete and tokenizer.chat_template.is_plain:
            notes.print("note: the checkpoint has no chat template, so a plain one is used; --complete uses none")
        ended_well = _loop(talk, notes, as_json=as_json)
    if not ended_well:
        raise typer.Exit(_FAILED)


@dataclass
class _Answer:
    """What came back for one text, and how fast. Times in seconds from when it was asked."""

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
        """After the first token; None where there is no second."""
        return _tokens_per_s([self])

    def as_json(self) -> str:
        return json.dumps(asdict(self) | {"tokens_per_s": self.tokens_per_s}, ensure_ascii=False)


@dataclass
class _Talk:
    """The conversation so far, and every answer that was given."""

    engine: Engine
    tokenizer: Tokenizer
    params: SamplingParams
    system: str | None
    complete: bool
    messages: list[dict[str, str]] = field(default_factory=list)
    answers: list[_Answer] = field(default_factory=list)
    is_interrupted: bool = False  # by Ctrl-C, and nothing was typed since

    def answer(self, prompt: str, show: Callable[[str], None]) -> _Answer:
        """Ask the model; `show` gets the text as it comes. Ctrl-C ends the answer, and what there is of it counts.

        Raises RequestError where the text does not fit or the engine cannot go on; the conversation is as before then.
        """
        asked = [*self.messages, {"role": "user", "content": prompt}]
        token_ids = self._encode(prompt, asked)
        answer = _Answer(prompt)
        self._stream(token_ids, answer, show)
        if answer.error is not None:
            raise RequestError(answer.error)
        if not self.complete:
            self.messages = [*asked, {"role": "assistant", "content": answer.text}]
        self.answers.append(answer)
        return answer

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

    def _stream(self, token_ids: list[int], answer: _Answer, show: Callable[[str], None]) -> None:
        """Fill in the answer as it comes."""
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


def _loop(talk: _Talk, notes: Console, *, as_json: bool) -> bool:
    """Answer what is typed or piped in, to its end. False where a text could not be answered."""
    is_typed = sys.stdin is not None and sys.stdin.isatty()
    all_answered = True
    for line in _lines(talk, notes) if is_typed else _piped():
        command = line.strip()
        if command == "/quit":
            break
        if command in ("/reset", "/stats", "/help") or (is_typed and command.startswith("/") and " " not in command):
            _obey(talk, command, notes)
            continue
        try:
            answer = talk.answer(line, (lambda _: None) if as_json else _show)
        except RequestError as error:
            all_answered = False
            if as_json:
                print(_Answer(line, error=str(error), finish_reason="error").as_json(), flush=True)
            notes.print(f"error: {error}")
            continue
        print(answer.as_json() if as_json else "", flush=True)
        if answer.finish_reason == "abort":
            if not is_typed:
                notes.print(_summary(talk.answers))
                raise KeyboardInterrupt  # nobody is there to type the next one
            notes.print("stopped; Ctrl-C again leaves")
    notes.print(_summary(talk.answers))
    return all_answered or is_typed


def _lines(talk: _Talk, notes: Console) -> Iterator[str]:
    """What somebody types, to Ctrl-D. Raises KeyboardInterrupt at a second Ctrl-C in a row."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # input() then edits, and remembers what was typed
    notes.print("/help says what there is besides asking; /quit leaves", style="dim")
    while True:
        if not sys.stdout.isatty():
            notes.print("> ", end="")  # input() would write it among the answers
        try:
            line = input("> " if sys.stdout.isatty() else "")
        except EOFError:
            notes.print()
            return
        except KeyboardInterrupt:
            if talk.is_interrupted:
                raise
            talk.is_interrupted = True
            notes.print("\nCtrl-C again leaves, and so does /quit")
            continue
        talk.is_interrupted = False
        if line.strip():
            yield line


def _piped() -> Iterator[str]:
    for line in sys.stdin or ():  # closed: nothing is asked
        if line.strip():
            yield line.rstrip("\r\n")


def _obey(talk: _Talk, command: str, notes: Console) -> None:
    if command == "/reset":
        talk.reset()
        notes.print("the conversation is forgotten")
    elif command == "/stats":
        notes.print(_stats(talk))
    else:
        notes.print(_HELP if command == "/help" else f"there is no {command}; /help lists what there is")


def _show(text: str) -> None:
    """At once. A terminal gets no control characters, which could move the cursor or worse."""
    if sys.stdout.isatty():
        text = "".join(c if c in "\n\t" or unicodedata.category(c) != "Cc" else "\ufffd" for c in text)
    sys.stdout.write(text)
    sys.stdout.flush()


def _stats(talk: _Talk) -> str:
    stats = talk.engine.stats()
    hits = _share(stats.prefix_cache_hits, stats.prefix_cache_queries)
    drafts = _share(stats.num_accepted_tokens, stats.num_draft_tokens)
    last = talk.answers[-1:]
    prompt = f" · prompt {last[0].num_prompt_tokens} tokens, {last[0].num_cached_tokens} of them cached" if last else ""
    return (
        f"last    {_summary(last)}{prompt}\n"
        f"all     {_summary(talk.answers)}\n"
        f"engine  KV cache {stats.kv_cache_usage:.0%} · prefix hits {hits} · drafts accepted {drafts}"
    )


def _summary(answers: Sequence[_Answer]) -> str:
    """One line: how many, how long, how fast."""
    if not answers:
        return "no answer"
    firsts = sorted(answer.ttft_s for answer in answers if answer.ttft_s is not None)
    first = duration(firsts[len(firsts) // 2]) if firsts else DASH
    num_tokens = sum(answer.num_tokens for answer in answers)
    return (
        f"{len(answers)} answer{'s' if len(answers) > 1 else ''} · {num_tokens:,} tokens · "
        f"{digits(_tokens_per_s(answers))} tokens/s · first token after {first}"
    )


def _tokens_per_s(answers: Sequence[_Answer]) -> float | None:
    """After each one's first token, whose time is the prompt's."""
    timed = [(a.num_tokens - 1, a.e2e_s - a.ttft_s) for a in answers if a.ttft_s is not None and a.num_tokens > 1]
    spent_s = sum(span_s for _, span_s in timed)
    return sum(number for number, _ in timed) / spent_s if spent_s > 0 else None


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole else DASH
