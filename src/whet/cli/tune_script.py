"""Tune a training script that stays as it is: whet tune -- python train.py ARGUMENTS."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from whet.auditor.report import count
from whet.cli import tables, training_tables
from whet.cli.busy import patience_of, show_waiting
from whet.cli.units import seconds
from whet.errors import OptionError, OutputError
from whet.files import names_in, writable_parent
from whet.scripts.command import ScriptCommand
from whet.scripts.launching import runs_python
from whet.tuner.goal import MAX_DROP_TRAINING
from whet.tuner.listener import Listener
from whet.tuner.records import TrialRecord
from whet.tuner.result import Result
from whet.tuner.scripts.tuning import NUM_STEPS, ScriptPlan, tune_script


def is_command(targets: Sequence[str]) -> bool:
    """Return whether the words after `whet tune` are a command: a program, and a script that ends in .py or -m."""
    return runs_python(targets[0]) or (
        ":" not in targets[0] and any(word.endswith(".py") or word == "-m" for word in targets)
    )


def tune_command(
    words: Sequence[str],
    given: Mapping[str, object],
    *,
    num_steps: int | None,
    max_drop: float | None,
    budget: str,
    out: Path | None,
    exclude: Sequence[str],
    on_busy: str,
    busy_wait: str,
    as_json: bool,
) -> Result:
    """Tune a script, show how it goes and what was found, and return the result.

    Args:
        words: The command.
        given: Options that are for models alone, by their names, and whether they were given.
        num_steps: The most optimiser steps of a run.
        max_drop: How much of the training loss may be lost, as a fraction.
        budget: The time for everything, as text.
        out: A new directory for the results.
        exclude: Techniques that are not tried.
        on_busy: What to do on a busy machine.
        busy_wait: How long to wait for a quiet machine, as text.
        as_json: Whether to print one JSON object as the last line.

    Raises:
        OptionError: An option does not go with a script.
        OutputError: The directory cannot be used.
    """
    for name, value in given.items():
        if value:
            raise OptionError(f"{name} does not go with a script; leave it out")
    command = ScriptCommand.checked(words)
    directory = _directory(command, out)
    plan = ScriptPlan(
        command=command,
        directory=directory,
        num_steps=NUM_STEPS if num_steps is None else num_steps,
        budget_s=seconds("--budget", budget),
        max_drop=MAX_DROP_TRAINING if max_drop is None else max_drop,
        exclude=tuple(exclude),
    )
    console = Console(stderr=as_json)
    patience = patience_of(on_busy, busy_wait, console)
    console.print(f"{command.name}: running it as it is, in a copy", markup=False, highlight=False)
    result = tune_script(plan, patience, _Lines(console))
    training_tables.show_result(console, result)
    if result.verdict == "gain":
        console.print(result.unsaved.rpartition(": ")[2], markup=False, highlight=False, soft_wrap=True)
    if as_json:
        print(json.dumps(result.summary()))
    return result


class _Lines(Listener):
    """Show a line for each trial and each part of the proof."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def tried(self, record: TrialRecord) -> None:
        tables.show_trial(self._console, record)

    def waiting(self, text: str) -> None:
        show_waiting(self._console, text)

    def measured(self, rounds_done: int, rounds: int) -> None:
        self._say(f"finals, round {rounds_done} of {rounds}")

    def proved(self, num_pairs: int) -> None:
        self._say(f"training loss, {count(num_pairs, 'pair')} of runs")

    def _say(self, text: str) -> None:
        self._console.print(text, style="dim", markup=False, highlight=False)


def _directory(command: ScriptCommand, out: Path | None) -> Path:
    """Return the directory for the results: --out, or a new one below whet-out.

    Raises:
        OutputError: It holds something already, or cannot be written.
    """
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", command.name).lstrip(".") or "script"
    directory, number = out or Path("whet-out") / name, 2
    while out is None and directory.exists():
        directory, number = Path("whet-out") / f"{name}-{number}", number + 1
    if names_in(directory):
        raise OutputError(f"{directory} is not empty; choose another --out")
    writable_parent(directory)
    return directory
