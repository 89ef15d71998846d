"""Find the fastest recipe for a model, and prove it: whet tune."""

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import typer
from rich.console import Console

from whet.auditor.report import count
from whet.cli import tables, training_tables, tune_script, tune_stream
from whet.cli.busy import INCONCLUSIVE, BusyWaitOption, OnBusyOption
from whet.cli.tuning_progress import TuningProgress
from whet.cli.units import fraction, num_bytes, seconds
from whet.errors import OptionError, StreamTarget
from whet.measure.quiet import OnBusy
from whet.tuner.command import command_line
from whet.tuner.goal import MAX_SLOWDOWN
from whet.tuner.outlook import going_on
from whet.tuner.result import Objective, Result
from whet.tuner.tuning import tune as run_tune
from whet.tuner.verdict import out_of_reach
from whet.workloads.fine_tuning import with_training

_EXIT_CODES = {"failed": 1, "inconclusive": INCONCLUSIVE}
_BUDGET = "5m"
_LONGEST = 100  # characters of a directory's name; file systems take 255 bytes


_Targets = Annotated[
    list[str],
    typer.Argument(
        metavar="TARGET...",
        help="the targets: a built-in name such as digits-cnn or docs-gpt-training, hf:DIR, FILE.py:FUNCTION or "
        "package.module:FUNCTION; or a training script as it is: -- python train.py ARGUMENTS",
    ),
]
_Train = Annotated[
    Path | None, typer.Option(metavar="FILE", help="a text file to train hf:DIR on: tune its training, not its calls")
]
_Training = Annotated[
    str | None,
    typer.Option(
        metavar="TARGET", help="the training that the model came from, such as digits-cnn-training: prune the model too"
    ),
]
_Objective = Annotated[
    Objective, typer.Option(metavar="GOAL", help="what to improve: latency, throughput, memory or size")
]
_MaxDrop = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBER",
        help="how much quality may be lost, as a fraction of the original's: 0.01 or 1%",
        show_default="1%; 0.25% of a training's held-out loss",
    ),
]
_MaxSlowdown = Annotated[
    float,
    typer.Option(metavar="NUMBER", help="for the memory of a training: how many times as long a step may take"),
]
_AllowBatch = Annotated[
    bool,
    typer.Option(
        "--allow-batch",
        help="for a training: measure larger batches too, after equal numbers of samples; the recipe leaves them out",
    ),
]
_MaxMemory = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="the most memory of the process, or of a training step, as 800MB"),
]
_Budget = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="the time for each target, with everything included",
        show_default=f"{_BUDGET}, for a stream {tune_stream.BUDGET}",
    ),
]
_Out = Annotated[
    Path | None, typer.Option(metavar="DIR", help="a new directory for the results", show_default="whet-out/TARGET")
]
_Storage = Annotated[
    str | None,
    typer.Option(metavar="URL", help="the URL of an Optuna storage, which machines of one kind may share"),
]
_Resume = Annotated[bool, typer.Option("--resume", help="continue the search whose results are in --out")]
_Exclude = Annotated[
    str,
    typer.Option(
        metavar="NAMES", help="techniques that are not tried, separated by commas; `whet techniques` lists all"
    ),
]
_Steps = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="for a script: the most optimiser steps of each run; for a stream: the sampler's steps a frame",
        show_default=f"{tune_script.NUM_STEPS}; a stream's own",
    ),
]
_Source = Annotated[
    str, typer.Option(metavar="SOURCE", help="for a stream: the frames that it is measured on, as for whet stream")
]
_Sink = Annotated[
    str, typer.Option(metavar="SUFFIX", help="for a stream: the kind of video that it will write, as .mp4")
]
_FrameBudget = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help="for a stream: find the best quality within this time a frame", show_default="fastest"
    ),
]
_Sampler = Annotated[str | None, typer.Option(metavar="NAME", help="for a stream: the sampler that it has now")]
_Prompt = Annotated[str | None, typer.Option(metavar="TEXT", help="for a stream: the prompt")]
_Data = Annotated[
    Path | None, typer.Option(metavar="FILE", help="for signs-stream: sign_digits.tar, with the true frames")
]
_AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object as the last line")]


def tune(
    targets: _Targets,
    train: _Train = None,
    training: _Training = None,
    objective: _Objective = "latency",
    max_drop: _MaxDrop = None,
    max_slowdown: _MaxSlowdown = MAX_SLOWDOWN,
    allow_batch: _AllowBatch = False,
    max_memory: _MaxMemory = None,
    budget: _Budget = None,
    out: _Out = None,
    storage: _Storage = None,
    resume: _Resume = False,
    exclude: _Exclude = "",
    steps: _Steps = None,
    source: _Source = "synthetic",
    sink: _Sink = "null",
    frame_budget: _FrameBudget = None,
    sampler: _Sampler = None,
    prompt: _Prompt = None,
    data: _Data = None,
    on_busy: OnBusyOption = "wait",
    busy_wait: BusyWaitOption = "2m",
    as_json: _AsJson = False,
) -> None:
    """Find the fastest recipe for a model, a training run, a stream or a training script here, and prove it.

    The exit code is 0 with a verdict, 3 if the machine was too busy, or the budget too short, for one,
    and 1 if nothing could be measured.
    """
    drop = None if max_drop is None else _max_drop(max_drop)
    excluded = [name.strip() for name in exclude.split(",") if name.strip()]
    if tune_script.is_command(targets):
        for_models = {
            "--train": train,
            "--training": training,
            f"--objective {objective}": objective not in ("latency", "throughput"),
            "--allow-batch": allow_batch,
            "--max-memory": max_memory,
            "--storage": storage,
            "--resume": resume,
        }
        chosen = {
            "num_steps": steps,
            "max_drop": drop,
            "budget_s": seconds("--budget", budget or _BUDGET),
            "out": out,
            "exclude": excluded,
        }
        how = {"on_busy": on_busy, "busy_wait": busy_wait}
        result = tune_script.tune_command(targets, for_models, chosen, **how, as_json=as_json)
        raise typer.Exit(_EXIT_CODES.get(result.verdict, 0))
    console = Console(stderr=as_json)
    options: dict[str, Any] = {
        "objective": objective,
        "max_drop": drop,
        "max_slowdown": max_slowdown,
        "allow_batch": allow_batch,
        "max_memory_bytes": num_bytes("--max-memory", max_memory) if max_memory is not None else None,
        "budget_s": seconds("--budget", budget or _BUDGET),
        "storage": storage,
        "exclude": excluded,
    }
    busy: dict[str, Any] = {"on_busy": str(OnBusy.checked(on_busy)), "busy_wait_s": seconds("--busy-wait", busy_wait)}
    streams = tune_stream.ForStreams(steps, source, sink, frame_budget, sampler, prompt, data, budget)
    verdicts = set()
    for target in [_with(target, train, training) for target in targets]:
        directory = _directory(target, out, alone=len(targets) == 1, resume=resume)
        again = partial(command_line, target, **busy, as_json=as_json, resume=True)
        try:
            streams.check(target)
            result = _tuned(console, target, options, again, out=directory, resume=resume, **busy)
        except StreamTarget:
            verdicts.add(streams.tune(console, target, options, busy, out=directory, resume=resume, as_json=as_json))
            continue
        if result.kind == "training":
            training_tables.show_result(console, result)
        else:
            tables.show_result(console, result)
        _show_rest(console, result, options, again)
        if as_json:
            print(json.dumps(result.summary()))
        verdicts.add(result.verdict)
    if verdicts & _EXIT_CODES.keys():
        raise typer.Exit(min(_EXIT_CODES[verdict] for verdict in verdicts & _EXIT_CODES.keys()))


def _tuned(
    console: Console,
    target: str,
    options: dict[str, Any],
    again: Callable[..., str],
    *,
    out: Path,
    resume: bool,
    **busy: Any,
) -> Result:
    """Tune one target and show how it goes. On Ctrl-C, print the command that goes on with the search.

    Args:
        console: Where progress is shown.
        target: As the user named it.
        options: Those of `whet.tune` that say what is searched for.
        again: Returns the command that goes on with the search, given these options and `out`.
        out: The directory for the results.
        resume: Whether to go on with an earlier search.
        busy: The options of `whet.tune` for a busy machine.
    """
    with TuningProgress(console, target, options["budget_s"]) as listener:
        try:
            return run_tune(target, **options, out=out, resume=resume, **busy, listener=listener)
        except KeyboardInterrupt:
            if listener.num_trials:
                kept = "is kept" if listener.num_trials == 1 else "are kept"
                console.print(f"stopped; {count(listener.num_trials, 'trial')} {kept}. To go on:")
                console.print(again(**options, out=out), markup=False, highlight=False, soft_wrap=True)
            raise


def _show_rest(console: Console, result: Result, options: dict[str, Any], again: Callable[..., str]) -> None:
    """One line where the time was up before every technique was tried: how many are untried, and how to go on."""
    num_untried = out_of_reach(result.untried)
    if not num_untried and result.needed_s is None:
        return
    budget_s = max(options["budget_s"], result.needed_s or 0.0)
    command = again(**{**options, "budget_s": budget_s}, out=Path(result.out))
    line = going_on(num_untried, command, was_busy=bool(result.busy)) if num_untried else f"For a verdict: {command}"
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _with(target: str, file: Path | None, training: str | None) -> str:
    """Return the target with the file to train on, or the training that it came from, among its options."""
    if file is not None and training is not None:
        raise OptionError("--train tunes a training, and --training goes with a model to run; leave one of them out")
    return _on_text(target, file) if training is None else with_training(target, training)


def _on_text(target: str, file: Path | None) -> str:
    """Return the target with the file to train on among its options.

    Raises:
        OptionError: The target is no Hugging Face directory.
    """
    if file is None:
        return target
    if not target.startswith("hf:"):
        raise OptionError(f"--train goes with hf:DIR; {target} is no such target")
    return f"{target}{'&' if '?' in target else '?'}{urlencode({'train': str(file)}, safe='/')}"


def _max_drop(text: str) -> float:
    """Return the fraction of --max-drop.

    Raises:
        OptionError: The text is no fraction from 0 to below 1.
    """
    drop = fraction("--max-drop", text)
    if not 0 <= drop < 1:
        raise OptionError(f"--max-drop {text!r}: write a fraction from 0 to below 1, such as 0.01 or 1%")
    return drop


def _directory(target: str, out: Path | None, *, alone: bool, resume: bool) -> Path:
    """Return the directory for a target's results: --out for one target, a directory in it for each of several."""
    path, mark, options = target.partition("?")
    last = Path(path.removeprefix("hf:")).resolve().name if path.startswith("hf:") else path.rpartition("/")[2]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", last + mark + options).lstrip(".")[:_LONGEST] or "model"
    if out is not None:
        return out if alone else out / name
    directory = Path("whet-out") / name
    if resume:
        return directory
    number = 2
    while directory.exists():
        directory = Path("whet-out") / f"{name}-{number}"
        number += 1
    return directory
