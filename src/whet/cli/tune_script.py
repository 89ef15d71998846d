"""Tune a training script that stays as it is: whet tune -- python train.py ARGUMENTS."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from whet.auditor.report import count
from whet.cli import tables, training_tables
from whet.cli.busy import patience_of, show_waiting
from whet.tuner.listener import Listener
from whet.tuner.records import TrialRecord
from whet.tuner.scripts.tune_script import tune_script


def tune_command(
    words: Sequence[str],
    options: Mapping[str, Any],
    *,
    on_busy: str,
    busy_wait: str,
    as_json: bool,
) -> str:
    """Tune a script, show how it goes and what was found, and return the verdict.

    Args:
        words: The command.
        options: Those of `whet.tune_script`.
        on_busy: What to do on a busy machine.
        busy_wait: How long to wait for a quiet machine, as text.
        as_json: Whether to print one JSON object as the last line.
    """
    console = Console(stderr=as_json)
    console.print(f"{' '.join(words)}: running it as it is, in copies", markup=False, highlight=False)
    result = tune_script(words, **options, patience=patience_of(on_busy, busy_wait, console), listener=_Lines(console))
    training_tables.show_result(console, result)
    if result.verdict == "gain":
        console.print(result.unsaved.rpartition(": ")[2], markup=False, highlight=False, soft_wrap=True)
    if as_json:
        print(json.dumps(result.summary()))
    return result.verdict


class _Lines(Listener):
    """Show a line for each trial and each part of the proof."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def tried(self, record: TrialRecord) -> None:
        tables.show_trial(self._console, record)

    def waiting(self, text: str) -> None:
        show_waiting(self._console, text)

    def known(self, text: str) -> None:
        self._say(text)

    def measured(self, rounds_done: int, rounds: int) -> None:
        self._say(f"finals, round {rounds_done} of {rounds}")

    def proved(self, num_pairs: int) -> None:
        self._say(f"training loss, {count(num_pairs, 'pair')} of runs")

    def _say(self, text: str) -> None:
        self._console.print(text, style="dim", markup=False, highlight=False)
