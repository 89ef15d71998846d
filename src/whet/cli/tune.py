"""Find the fastest recipe for a model, and prove it: whet tune."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from whet.cli.busy import INCONCLUSIVE, BusyWaitOption, OnBusyOption, busy_wait_s
from whet.cli.for_streams import BUDGET as STREAM_BUDGET
from whet.cli.for_streams import ForStreams
from whet.errors import OptionError
from whet.measure.fast_import import large_imports
from whet.measure.on_busy import OnBusy
from whet.scripts.injection.launchers import check_started_once
from whet.scripts.injection.launching import name_of, runs_python
from whet.scripts.injection.script_command import ScriptCommand
from whet.streamer.target_name import names_a_stream
from whet.techniques.names import check_excluded, technique_names, training_technique_names
from whet.tuner.goal import MAX_SLOWDOWN, SCRIPT_STEPS, Goal, Objective
from whet.tuner.kind_options import PLAN_TECHNIQUES, KindWord, check_nproc, check_options, ray_address
from whet.ui.units import fraction, num_bytes, seconds
from whet.workloads.target_name import check_name, is_training, with_training

_EXIT_CODES = {"failed": 1, "inconclusive": INCONCLUSIVE}
_BUDGET = "5m"
_LONGEST = 100  # characters of a directory's name; file systems take 255 bytes


_Targets = Annotated[
    list[str],
    typer.Argument(
        metavar="TARGET...",
        help="the targets: a built-in name such as digits-cnn or docs-gpt-training, hf:DIR, FILE.py:FUNCTION or "
        "package.module:FUNCTION; or a training script as it is: -- python train.py ARGUMENTS, or -- torchrun OPTIONS "
        "train.py ARGUMENTS",
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
_Nproc = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="for a training: share its batches among N processes of this machine, and tune their plan too"
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
        show_default=f"{_BUDGET}, for a stream {STREAM_BUDGET}",
    ),
]
_Out = Annotated[
    Path | None, typer.Option(metavar="DIR", help="a new directory for the results", show_default="whet-out/TARGET")
]
_Storage = Annotated[
    str | None,
    typer.Option(metavar="URL", help="the URL of an Optuna storage, which machines of one kind may share"),
]
_Workers = Annotated[
    str | None,
    typer.Option(
        metavar="ray[=HOST:PORT]",
        help="let the nodes of a Ray cluster that are machines of this kind make the trials; the finals run here",
    ),
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
        show_default=f"{SCRIPT_STEPS}; a stream's own",
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


def _check_names(targets: Sequence[str]) -> None:
    """Check the targets that their names alone tell of; others are looked at with their options.

    Raises:
        RanksError: This process is one of several that a launcher started.
    """
    check_started_once()
    if not _is_command(targets):
        for target in targets:
            if not target.startswith("hf:") and not names_a_stream(target):
                check_name(target)


NAMES = {"targets": _check_names}
"""What checks a parameter as it was typed; see typed.py."""


def tune(
    targets: _Targets,
    train: _Train = None,
    training: _Training = None,
    objective: _Objective = "latency",
    max_drop: _MaxDrop = None,
    max_slowdown: _MaxSlowdown = MAX_SLOWDOWN,
    allow_batch: _AllowBatch = False,
    nproc: _Nproc = None,
    max_memory: _MaxMemory = None,
    budget: _Budget = None,
    out: _Out = None,
    storage: _Storage = None,
    workers: _Workers = None,
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
    check_nproc(nproc)
    streams = ForStreams(steps, source, sink, frame_budget, sampler, prompt, data, budget)
    options: dict[str, Any] = {
        "objective": objective,
        "max_drop": None if max_drop is None else _max_drop(max_drop),
        "max_slowdown": max_slowdown,
        "allow_batch": allow_batch,
        "nproc": nproc,
        "max_memory_bytes": num_bytes("--max-memory", max_memory) if max_memory is not None else None,
        "budget_s": seconds("--budget", budget or _BUDGET),
        "storage": storage,
        "workers": workers,
        "exclude": [name.strip() for name in exclude.split(",") if name.strip()],
    }
    busy: dict[str, Any] = {"on_busy": str(OnBusy.checked(on_busy)), "busy_wait_s": busy_wait_s(busy_wait)}
    beside = {"--train": train is not None, "--training": training is not None, "--resume": resume}
    chosen = [*_given(options), *(option for option, is_given in beside.items() if is_given), *streams.options()]
    named = [list(targets)] if _is_command(targets) else [_with(target, train, training) for target in targets]
    for target in named:
        _check(target, options, streams, chosen)
    with large_imports():
        from whet.cli.tune_targets import Request, tune_targets
    verdicts = tune_targets(
        [(target, _directory(target, out, alone=len(named) == 1, resume=resume)) for target in named],
        Request(options, streams, busy, chosen, resume=resume, as_json=as_json),
    )
    if verdicts & _EXIT_CODES.keys():
        raise typer.Exit(min(_EXIT_CODES[verdict] for verdict in verdicts & _EXIT_CODES.keys()))


def _given(options: Mapping[str, Any]) -> list[str]:
    """Return the options that say what is searched for and were given, as check_options takes them."""
    given = {
        f"--objective {options['objective']}": options["objective"] != "latency",
        "--max-slowdown": options["max_slowdown"] != MAX_SLOWDOWN,
        "--allow-batch": options["allow_batch"],
        "--nproc": options["nproc"] is not None,
        "--max-memory": options["max_memory_bytes"] is not None,
        "--storage": options["storage"] is not None,
        "--workers": options["workers"] is not None,
    }
    return [option for option, is_given in given.items() if is_given]


def _check(target: str | Sequence[str], options: Mapping[str, Any], streams: ForStreams, given: Sequence[str]) -> None:
    """Check a target, and what goes with it, by its name alone. The rest is checked as it is opened."""
    kinds = _possible_kinds(target)
    check_options(given, target if isinstance(target, str) else " ".join(target), kinds)
    if not isinstance(target, str):
        ScriptCommand.checked(target)
    elif kinds != ["stream"]:
        check_name(target)
    known = dict.fromkeys(() if kinds in (["training"], ["script"]) else technique_names())
    known |= dict.fromkeys(() if kinds in (["inference"], ["stream"]) else training_technique_names())
    known |= dict.fromkeys(PLAN_TECHNIQUES if options["nproc"] is not None else ())
    check_excluded(options["exclude"], list(known))
    if options["workers"] is not None:
        ray_address(options["workers"])
    if kinds == ["stream"]:
        streams.check_options(str(target), options)
        return
    goal = Goal.checked(
        options["objective"],
        options["max_drop"],
        options["max_memory_bytes"],
        options["budget_s"],
        options["max_slowdown"],
        allow_batch=options["allow_batch"],
    )
    if kinds in (["training"], ["script"]):
        goal.for_training()


def _possible_kinds(target: str | Sequence[str]) -> list[KindWord]:
    """Return the kinds that a target may be of, as far as its name tells."""
    if not isinstance(target, str):
        return ["script"]
    if names_a_stream(target):
        return ["stream"]
    if is_training(target):
        return ["training"]
    only_building_tells = ":" in target and not target.startswith("hf:")
    return ["inference", "training", "stream"] if only_building_tells else ["inference"]


def _is_command(targets: Sequence[str]) -> bool:
    """Return whether the words after `whet tune` are a command: a program, then a script that ends in .py, or -m."""
    others = any(word.endswith(".py") or word == "-m" for word in targets[1:])
    return runs_python(targets[0]) or (others and ":" not in targets[0])


def _with(target: str, file: Path | None, training: str | None) -> str:
    """Return the target with the file to train on, or the training that it came from, among its options.

    Raises:
        OptionError: Both were given, or the file with a target that is no Hugging Face directory.
    """
    if file is not None and training is not None:
        raise OptionError("--train tunes a training, and --training goes with a model to run; leave one of them out")
    if training is not None:
        return with_training(target, training)
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


def _directory(target: str | Sequence[str], out: Path | None, *, alone: bool, resume: bool) -> Path:
    """Return the directory for a target's results: --out for one target, a directory in it for each of several."""
    path, mark, options = (target if isinstance(target, str) else name_of(target)).partition("?")
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
