"""Talk to a model in the terminal: whet chat."""

import contextlib
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from whet.cli.engine_options import DEFAULTS, DtypeOption, WeightsOption
from whet.errors import RequestError
from whet.measure.fast_import import large_imports
from whet.server.options import EngineOptions
from whet.ui.figures import DASH, digits, duration, percent
from whet.workloads import model_directory

if TYPE_CHECKING:
    from rich.console import Console

    from whet.server.conversation import Answer, Conversation

NAMES = {"model": model_directory.model_directory}
"""What checks a parameter as it was typed; see typed.py."""

_FAILED = 2
_HELP = """/reset  forget the conversation
/stats  the last answer's figures, and the engine's
/quit   leave; so does Ctrl-D
Ctrl-C stops an answer; a second one leaves."""


def chat(
    model: Annotated[str, typer.Argument(metavar=model_directory.METAVAR, help=model_directory.HELP)],
    weights: WeightsOption = None,
    dtype: DtypeOption = None,
    temperature: Annotated[
        float, typer.Option(help="0 always takes the most probable token; higher values vary more")
    ] = 0.7,
    max_tokens: Annotated[int, typer.Option(min=1, help="the most tokens of an answer")] = 512,
    seed: Annotated[
        int | None, typer.Option(help="the same seed gives the same answers", show_default="random")
    ] = None,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="the system prompt, which precedes the conversation")
    ] = None,
    complete: Annotated[
        bool, typer.Option("--complete", help="continue each text as it is, without a chat template (for base models)")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object for each answer, at its end")] = False,
) -> None:
    """Talk to a model in the terminal. Piped lines are answered one by one."""
    options = EngineOptions(weights=weights or DEFAULTS.weights, dtype=dtype or DEFAULTS.dtype)
    with large_imports():
        from rich.console import Console

        from whet.server.conversation import chat as begin
    notes = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    with notes.status("loading the model"):
        opened = begin(
            model,
            options,
            temperature=temperature,
            max_tokens=max_tokens,
            seed=seed,
            system=system,
            complete=complete,
        )
    with opened as talk:
        if talk.has_plain_template:
            notes.print("note: the checkpoint has no chat template, so a plain one is used; --complete uses none")
        ended_well = _loop(talk, notes, as_json=as_json)
    if not ended_well:
        raise typer.Exit(_FAILED)


def _loop(talk: "Conversation", notes: "Console", *, as_json: bool) -> bool:
    """Answer what is typed or piped in, to its end. False where a text could not be answered."""
    from whet.server.conversation import Answer

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
                print(Answer(line, error=str(error), finish_reason="error").as_json(), flush=True)
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


def _lines(talk: "Conversation", notes: "Console") -> Iterator[str]:
    """Yield the lines that the user types, until Ctrl-D.

    Raises:
        KeyboardInterrupt: The user pressed Ctrl-C twice in a row.
    """
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


def _obey(talk: "Conversation", command: str, notes: "Console") -> None:
    if command == "/reset":
        talk.reset()
        notes.print("the conversation is forgotten")
    elif command == "/stats":
        notes.print(_stats(talk))
    else:
        notes.print(_HELP if command == "/help" else f"there is no {command}; /help lists what there is")


def _show(text: str) -> None:
    """Write text without delay. A terminal gets no control characters, which could move the cursor or do worse."""
    if sys.stdout.isatty():
        text = "".join(c if c in "\n\t" or unicodedata.category(c) != "Cc" else "\ufffd" for c in text)
    sys.stdout.write(text)
    sys.stdout.flush()


def _stats(talk: "Conversation") -> str:
    stats = talk.engine.stats()
    hits = _share(stats.prefix_cache_hits, stats.prefix_cache_queries)
    drafts = _share(stats.num_accepted_tokens, stats.num_draft_tokens)
    last = talk.answers[-1:]
    prompt = f" · prompt {last[0].num_prompt_tokens} tokens, {last[0].num_cached_tokens} of them cached" if last else ""
    return (
        f"last    {_summary(last)}{prompt}\n"
        f"all     {_summary(talk.answers)}\n"
        f"engine  KV cache {percent(stats.kv_cache_usage, decimals=0)} · prefix hits {hits} · drafts accepted {drafts}"
    )


def _summary(answers: "Sequence[Answer]") -> str:
    from whet.server.conversation import tokens_per_s

    if not answers:
        return "no answer"
    firsts = sorted(answer.ttft_s for answer in answers if answer.ttft_s is not None)
    first = duration(firsts[len(firsts) // 2]) if firsts else DASH
    num_tokens = sum(answer.num_tokens for answer in answers)
    return (
        f"{len(answers)} answer{'s' if len(answers) > 1 else ''} · {num_tokens:,} tokens · "
        f"{digits(tokens_per_s(answers))} tokens/s · first token after {first}"
    )


def _share(part: float, whole: float) -> str:
    return percent(part / whole, decimals=0) if whole else DASH
