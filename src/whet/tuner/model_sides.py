"""Measure a model or a variant of it in a process of its own, as a side of the final comparison."""

import logging
from collections.abc import Sequence
from pathlib import Path

from whet.comparison.run import Run
from whet.measure.isolate import Outcome
from whet.tuner.budget import BudgetEnded
from whet.tuner.budget_plan import RUN_S
from whet.tuner.finals import NamedSide, side_name
from whet.tuner.records import TrialRecord
from whet.tuner.trial_context import TrialContext

_LOG = logging.getLogger("whet")

_LIMIT_S = 180.0


def model_side(context: TrialContext, record: TrialRecord | None) -> NamedSide:
    """Return the original (no record), or what a trial saved, as a side of the comparison."""
    name = side_name(record)
    folder = context.directory / "finals" / name
    return NamedSide(name, lambda: _run(name, context.measure(record, folder, RUN_S, _LIMIT_S)))


def peak_bytes_of(context: TrialContext, saved: Path, libraries: Sequence[str] = ()) -> int | None:
    """Return the peak memory of serving the original from an artefact: the most of three processes; None on failure."""
    folder = context.directory / "finals" / "saved-original"
    outcomes = [context.measure_artefact(saved, libraries, folder, RUN_S, _LIMIT_S) for _ in range(3)]
    runs = [_run("the saved original", outcome) for outcome in outcomes]
    return None if any(run.failure for run in runs) else max(run.peak_bytes for run in runs)


def _run(name: str, outcome: Outcome) -> Run:
    """Return a process's measurement. A failure is logged, unless the budget ended the process."""
    run = outcome.answer(Run)
    if run is not None:
        return run
    message = outcome.failure.message if outcome.failure else "no result"
    if not isinstance(outcome.failure, BudgetEnded):
        _LOG.warning("%s failed in the finals: %s", name, message)
    return Run(failure=message)
