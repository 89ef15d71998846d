"""Show on the terminal how a search goes: a line for every trial, and a bar of the budget."""

import time
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from whet.cli import tables, training_tables
from whet.cli.busy import show_waiting
from whet.tuner.budget_plan import BudgetPlan
from whet.tuner.facts import Facts, TargetFacts
from whet.tuner.figures import one_line
from whet.tuner.kind_options import KindWord, check_options
from whet.tuner.listener import Listener
from whet.tuner.records import TrialRecord
from whet.tuner.scripts.facts import ScriptFacts
from whet.tuner.streams.facts import StreamFacts
from whet.tuner.training.facts import TrainingFacts
from whet.ui.figures import counted


class TuningProgress(Listener):
    """Show progress on the terminal: a line for every trial, and a bar of the budget with the time left.

    `num_trials` counts the trials that ended by themselves.
    """

    def __init__(self, console: Console, target: str, budget_s: float, given: Sequence[str] = ()) -> None:
        """Begin to watch a search for a target, for which the user gave these options."""
        self._given = given
        self.num_trials = 0
        self._console = self.console = console
        self._budget_s = budget_s
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._target = target
        self._began = time.monotonic()
        self._task = self._progress.add_task("looking", total=self._budget_s)
        self._has_begun = False

    def __enter__(self) -> "TuningProgress":
        return self

    def begins(self) -> None:
        if self._has_begun:  # a function of the user's turned out to describe a training run
            return
        self._has_begun = True
        self._console.print(f"[bold]{escape(one_line(self._target))}[/bold]: looking at the model and the machine")
        self._progress.start()

    def __exit__(self, *exception: object) -> None:
        if self._has_begun:
            self._progress.stop()

    def looked(self, facts: Facts) -> None:
        """Say what bounds the target, where a step's memory goes, and what was refused.

        Raises:
            OptionError: An option that was given has no meaning for what the target turned out to be.
        """
        kinds: dict[type[Facts], KindWord] = {
            TrainingFacts: "training",
            ScriptFacts: "script",
            StreamFacts: "stream",
        }
        check_options(self._given, self._target, [kinds.get(type(facts), "inference")])
        if facts.busy:
            self._console.print(f"what bounds the model is not known, as {facts.busy}", markup=False)
        elif facts.diagnosis is not None:
            self._console.print(facts.diagnosis.sentence, markup=False)
        if isinstance(facts, TrainingFacts | ScriptFacts) and facts.memory is not None:
            self._console.print(training_tables.memory_line(facts.memory), markup=False, highlight=False)
        if hint := _gpu_hint(self._target, facts):
            self._console.print(hint, markup=False, highlight=False, soft_wrap=True)
        if facts.no_graph:
            why = f"refused: every technique that makes a graph of the model: {facts.no_graph}"
            self._console.print(why, markup=False)
        for hint in facts.hints:
            self._console.print(hint, markup=False, highlight=False)
        if facts.score is not None:
            self._console.print(f"{one_line(facts.quality_name)} of the original: {facts.score:.4g}", markup=False)
        self._advance("searching")

    def proved(self, num_pairs: int) -> None:
        self._advance(f"comparing losses, {counted(num_pairs, 'pair')} of runs")

    def known(self, text: str) -> None:
        self._console.print(text, style="dim", markup=False, highlight=False)

    def planned(self, outlook: BudgetPlan) -> None:
        self._console.print(outlook.sentence, markup=False, highlight=False)

    def tried(self, record: TrialRecord) -> None:
        self.num_trials += record.status != "stopped"
        tables.show_trial(self._console, record)
        self._advance(f"searching, {counted(self.num_trials, 'trial')} ended")

    def waiting(self, text: str) -> None:
        show_waiting(self._console, text)

    def measured(self, rounds_done: int, rounds: int) -> None:
        self._advance(f"finals, round {rounds_done} of {rounds}")

    def tuning(self, name: str, budget_s: float) -> Listener:
        """Say that a model of a stream is tuned; its trials are shown as the stream's own are."""
        self._console.print(f"tuning the stream's {name}, {budget_s:.0f} s at most", markup=False, highlight=False)
        return _Inner(self)

    def _advance(self, description: str) -> None:
        self._progress.update(self._task, completed=time.monotonic() - self._began, description=description)


class _Inner(Listener):
    """Show the trials of a search within another one."""

    def __init__(self, outer: TuningProgress) -> None:
        self._outer = outer

    def tried(self, record: TrialRecord) -> None:
        tables.show_trial(self._outer.console, record)

    def waiting(self, text: str) -> None:
        self._outer.waiting(text)


def _gpu_hint(target: str, facts: Facts) -> str:
    """Say how to put a model on the GPU, where the machine has one and the model is on the CPU unasked; else ""."""
    gpu = facts.machine.gpu
    if not isinstance(facts, TargetFacts) or not gpu or "device=" in target or facts.limits.device != "cpu":
        return ""
    return f"this model is on the CPU; on the {gpu}: whet tune '{target}{'&' if '?' in target else '?'}device=cuda'"
