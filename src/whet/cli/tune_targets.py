"""Tune targets of any kind, and show how it goes and what was found: what whet tune does with its targets."""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from whet.cli import stream_tables, tables, training_tables
from whet.cli.for_streams import ForStreams
from whet.cli.tuning_progress import TuningProgress
from whet.errors import StreamTarget
from whet.streamer.sinks import open_sink
from whet.streamer.stream import StreamOptions
from whet.streamer.target_name import names_a_stream
from whet.tuner.budget_plan import going_on
from whet.tuner.command import command_line
from whet.tuner.kind_options import KindWord, check_options
from whet.tuner.listener import Listener
from whet.tuner.result import Result
from whet.tuner.scripts.tune_script import tune_script
from whet.tuner.streams.clips import clips_of_signs
from whet.tuner.streams.tuning import tune_stream
from whet.tuner.training.words import run_command
from whet.tuner.tuning import tune
from whet.tuner.untried import out_of_reach
from whet.ui.figures import counted

_TABLES: Mapping[KindWord, Callable[[Console, Result], None]] = {
    "inference": tables.show_result,
    "training": training_tables.show_result,
    "script": training_tables.show_result,
    "stream": stream_tables.show_result,
}

Target = str | Sequence[str]
"""A target's name, or the words of a script's command."""


@dataclass(frozen=True)
class Request:
    """Hold what whet tune was asked for, beside the targets.

    Attributes:
        options: Those of `whet.tune` that say what is searched for.
        streams: Those for streams; a script has the number of steps among them.
        busy: Those of `whet.tune` for a busy machine.
        given: Those that the user gave, for targets whose kind only building them tells.
    """

    options: Mapping[str, Any]
    streams: ForStreams
    busy: Mapping[str, Any]
    given: Sequence[str]
    resume: bool
    as_json: bool

    def again(self, target: Target, out: Path, **changed: Any) -> str:
        """Return the command that goes on with the search for a target, with some of the options changed."""
        asked = {**self.options, **self.busy, "as_json": self.as_json, **changed}
        number = asked.pop("nproc")
        more = self.streams.options() if number is None else {"--nproc": str(number)}
        return command_line(target, **asked, out=out, resume=True, more=more)


def tune_targets(targets: Sequence[tuple[Target, Path]], request: Request) -> set[str]:
    """Tune targets one after the other, each with the directory for its results, and return their verdicts."""
    console = Console(stderr=request.as_json)
    verdicts = set[str]()
    for target, directory in targets:
        result = _tuned(console, target, directory, request)
        _TABLES[result.kind](console, result)
        _show_rest(console, result, target, request)
        if request.as_json:
            print(json.dumps(result.summary()))
        verdicts.add(result.verdict)
    return verdicts


def _tuned(console: Console, target: Target, out: Path, request: Request) -> Result:
    """Tune one target and show how it goes. On Ctrl-C, print the command that goes on with the search."""
    name = target if isinstance(target, str) else " ".join(target)
    is_stream = isinstance(target, str) and names_a_stream(target)
    budget_s = request.streams.goal(request.options, {}).budget_s if is_stream else request.options["budget_s"]
    with TuningProgress(console, name, budget_s, request.given) as listener:
        try:
            return _run(target, out, request, listener)
        except KeyboardInterrupt:
            if listener.num_trials:
                kept = "is kept" if listener.num_trials == 1 else "are kept"
                console.print(f"stopped; {counted(listener.num_trials, 'trial')} {kept}. To go on:")
                console.print(request.again(target, out), markup=False, highlight=False, soft_wrap=True)
            raise


def _run(target: Target, out: Path, request: Request, listener: Listener) -> Result:
    """Tune a target of any kind, by what it is called, or by what it turns out to be."""
    options, streams = request.options, request.streams
    how: dict[str, Any] = {"out": out, "resume": request.resume, "listener": listener}
    if not isinstance(target, str):
        of_script = {name: value for name, value in options.items() if name not in ("allow_batch", "nproc", "workers")}
        return tune_script(target, num_steps=streams.steps, **of_script, **request.busy, **how)
    if not names_a_stream(target):
        with contextlib.suppress(StreamTarget):
            return tune(target, **options, **request.busy, **how)
        check_options(request.given, target, ["stream"])
    sink = "" if streams.sink == "null" else streams.sink
    if sink:
        open_sink(f"whet-stream{sink}", overwrite=True).close()  # without a frame there is no file
    return tune_stream(
        target,
        streams.source,
        StreamOptions(steps=streams.steps, sampler=streams.sampler, prompt=streams.prompt),
        streams.goal(options, request.busy),
        clips=None if streams.data is None else clips_of_signs(streams.data),
        sink_suffix=sink,
        storage=options["storage"],
        clips_name="" if streams.data is None else str(streams.data),
        **how,
    )


def _show_rest(console: Console, result: Result, target: Target, request: Request) -> None:
    """Say how to get a verdict, or how many techniques are untried and how to go on; nothing where all was found."""
    if result.kind == "script" and result.verdict == "gain":
        console.print(run_command(result), markup=False, highlight=False, soft_wrap=True)
    num_untried = out_of_reach(result.untried)
    if result.is_disturbed:
        command = request.again(target, Path(result.out))
        line = f"For a verdict, close other programs and go on from here: {command}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
        return
    if not num_untried and result.needed_s is None:
        return
    command = request.again(target, Path(result.out), budget_s=max(result.budget_s, result.needed_s or 0.0))
    line = going_on(num_untried, command, was_busy=bool(result.busy)) if num_untried else f"For a verdict: {command}"
    console.print(line, markup=False, highlight=False, soft_wrap=True)
