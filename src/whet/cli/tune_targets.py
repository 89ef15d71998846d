"""Tune targets of any kind, and show how it goes and what was found: what whet tune does with its targets."""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
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


def tune_targets(
    targets: Sequence[tuple[Target, Path]],
    options: dict[str, Any],
    streams: ForStreams,
    busy: Mapping[str, Any],
    given: Sequence[str] = (),
    *,
    resume: bool,
    as_json: bool,
) -> set[str]:
    """Tune targets one after the other, each with the directory for its results, and return their verdicts.

    Args:
        options: Those of `whet.tune` that say what is searched for.
        streams: The options for streams; a script has the number of steps among them.
        busy: The options of `whet.tune` for a busy machine.
        given: The options that the user gave, for targets whose kind only building them tells.
    """
    console = Console(stderr=as_json)
    verdicts = set[str]()
    for target, directory in targets:
        again = partial(command_line, target, **busy, as_json=as_json, resume=True, more=streams.options())
        result = _tuned(console, target, streams, options, again, given, out=directory, resume=resume, **busy)
        _TABLES[result.kind](console, result)
        _show_rest(console, result, options, again)
        if as_json:
            print(json.dumps(result.summary()))
        verdicts.add(result.verdict)
    return verdicts


def _tuned(
    console: Console,
    target: Target,
    streams: ForStreams,
    options: dict[str, Any],
    again: Callable[..., str],
    given: Sequence[str],
    *,
    out: Path,
    resume: bool,
    **busy: Any,
) -> Result:
    """Tune one target and show how it goes. On Ctrl-C, print the command that goes on with the search.

    `again` returns that command, given the options of `whet.tune` and `out`. For the others see `tune_targets`.
    """
    name = target if isinstance(target, str) else " ".join(target)
    is_stream = isinstance(target, str) and names_a_stream(target)
    budget_s = streams.goal(options, {}).budget_s if is_stream else options["budget_s"]
    with TuningProgress(console, name, budget_s, given) as listener:
        try:
            return _run(target, streams, options, given, out=out, resume=resume, listener=listener, **busy)
        except KeyboardInterrupt:
            if listener.num_trials:
                kept = "is kept" if listener.num_trials == 1 else "are kept"
                console.print(f"stopped; {counted(listener.num_trials, 'trial')} {kept}. To go on:")
                console.print(again(**options, out=out), markup=False, highlight=False, soft_wrap=True)
            raise


def _run(
    target: Target,
    streams: ForStreams,
    options: Mapping[str, Any],
    given: Sequence[str],
    *,
    listener: Listener,
    **more: Any,
) -> Result:
    """Tune a target of any kind, by what it is called, or by what it turns out to be."""
    if not isinstance(target, str):
        of_script = {name: value for name, value in options.items() if name != "allow_batch"}
        return tune_script(target, num_steps=streams.steps, **of_script, **more, listener=listener)
    if not names_a_stream(target):
        with contextlib.suppress(StreamTarget):
            return tune(target, **options, **more, listener=listener)
        check_options(given, target, ["stream"])
    busy = {name: more.pop(name) for name in ("on_busy", "busy_wait_s")}
    sink = "" if streams.sink == "null" else streams.sink
    if sink:
        open_sink(f"whet-stream{sink}", overwrite=True).close()  # without a frame there is no file
    return tune_stream(
        target,
        streams.source,
        StreamOptions(steps=streams.steps, sampler=streams.sampler, prompt=streams.prompt),
        streams.goal(options, busy),
        clips=None if streams.data is None else clips_of_signs(streams.data),
        sink_suffix=sink,
        storage=options["storage"],
        clips_name="" if streams.data is None else str(streams.data),
        listener=listener,
        **more,
    )


def _show_rest(console: Console, result: Result, options: dict[str, Any], again: Callable[..., str]) -> None:
    """Say how to get a verdict, or how many techniques are untried and how to go on; nothing where all was found."""
    if result.kind == "script" and result.verdict == "gain":
        console.print(run_command(result), markup=False, highlight=False, soft_wrap=True)
    num_untried = out_of_reach(result.untried)
    if result.is_disturbed:
        command = again(**options, out=Path(result.out))
        line = f"For a verdict, close other programs and go on from here: {command}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
        return
    if not num_untried and result.needed_s is None:
        return
    budget_s = max(result.budget_s, result.needed_s or 0.0)
    command = again(**{**options, "budget_s": budget_s}, out=Path(result.out))
    line = going_on(num_untried, command, was_busy=bool(result.busy)) if num_untried else f"For a verdict: {command}"
    console.print(line, markup=False, highlight=False, soft_wrap=True)
