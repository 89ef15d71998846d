"""whet.profile_step: the phases of a training loop that is named, run in a child process for so many steps."""

import gc
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from whet.errors import ModelError, OptionError
from whet.measure.load import Observed
from whet.measure.quiet import WAIT_S, OnBusy, Patience
from whet.step_profiler.report import StepReport
from whet.step_profiler.run import run_training
from whet.target_profiler.profiled_process import Seen, note, profiled
from whet.workloads.training_target import training_function
from whet.workloads.user_code import what_and_where

NUM_STEPS = 100
LIMIT_S = 300.0
_GRACE_S = 60.0  # to load, and to come to the end of a step
_REPORT = TypeAdapter(StepReport)


def profile_step(
    target: str,
    *,
    num_steps: int = NUM_STEPS,
    limit_s: float = LIMIT_S,
    on_busy: str = OnBusy.WAIT,
    busy_wait_s: float = WAIT_S,
    patience: Patience | None = None,
    ended_early: Callable[[StepReport], None] = lambda report: None,
) -> StepReport:
    """Run `num_steps` steps of a training loop after its warm-up, and say where their time went.

    Args:
        target: FILE.py:FUNCTION or package.module:FUNCTION, a function that trains; or one that returns what a loop is
            made of, (model, optimizer, loader, loss), a TrainingWorkload, or a function that makes one step.
        num_steps: Steps that are counted.
        limit_s: Seconds after which the loop is stopped at the end of a step.
        on_busy: What to do where other processes disturb: "wait", "inconclusive" or "go-on".
        busy_wait_s: Seconds to wait in all.
        patience: In place of the two above, where the caller shows the waiting.
        ended_early: Is given what was seen until then, where that is not all, before the error is raised.

    Returns:
        The report. Where the machine was busy, `busy` says so.

    Raises:
        TargetError: The target cannot be had, or raised.
        OptionError: An option is out of its range.
    """
    if num_steps < 1:
        raise OptionError("the number of steps must be 1 or more")
    patience = patience or Patience(OnBusy.checked(on_busy), busy_wait_s)
    patience.begin()
    with tempfile.TemporaryDirectory(prefix="whet-step-") as scratch:
        seen = patience.measure(
            lambda: _seen(target, num_steps, limit_s, Path(scratch), ended_early),
            lambda seen: seen.report.busy if seen.report is not None else "",
        )
    report, failure = seen.report, seen.failure
    if report is None:
        assert failure is not None
        raise failure
    if failure is None and report.is_partial:
        failure = ModelError(f"{target} raised {report.ended_by}; the steps before it are shown, and are partial")
    if failure is not None:
        ended_early(report)
        raise failure
    return report


def look(target: str, num_steps: int, limit_s: float, directory: str) -> dict[str, Any]:
    """Return the report of a loop as JSON. Runs in the child; every few seconds it notes what is known so far."""
    function = training_function(target)
    gc.collect()
    gc.freeze()  # what whet has loaded is not the loop's: its garbage collections need not go through it
    report = run_training(
        function,
        num_steps=num_steps,
        limit_s=limit_s,
        describe=what_and_where,
        note=lambda report: note(Path(directory), report.as_json()),
    )
    return report.as_json()


def _seen(
    target: str, num_steps: int, limit_s: float, folder: Path, ended_early: Callable[[StepReport], None]
) -> Seen[StepReport]:
    with Observed() as observed:
        seen = profiled(
            look,
            {"target": target, "num_steps": num_steps, "limit_s": limit_s, "directory": str(folder)},
            folder,
            target=target,
            done="watched",
            read=_report,
            ended_early=ended_early,
            time_limit_s=limit_s + _GRACE_S,
        )
    if seen.report is None:
        return seen
    return replace(seen, report=replace(seen.report, busy=observed.load.cause))


def _report(data: Mapping[str, Any], why: str) -> StepReport:
    report = _REPORT.validate_python(data)
    return replace(report, is_partial=True, ended_by=why) if why else report
