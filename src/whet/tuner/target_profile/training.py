"""Measure the phases of a named training loop (`whet.profile_step`), which runs in a child process."""

import gc
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from whet.errors import ModelError, OptionError
from whet.measure.load import Observed
from whet.measure.quiet import WAIT_S, OnBusy, QuietWait
from whet.profiling.step.report import StepReport
from whet.profiling.step.run import run_training
from whet.tuner.target_profile.profiled_process import Seen, note, profiled, taken_quietly
from whet.workloads.training_target import check_training_name, training_function
from whet.workloads.user_code import what_and_where

NUM_STEPS = 100
LIMIT_S = 300.0
_GRACE_S = 60.0  # added to the limit: time to load, and to finish a step
_REPORT = TypeAdapter(StepReport)


def profile_step(
    target: str,
    *,
    num_steps: int = NUM_STEPS,
    limit_s: float = LIMIT_S,
    on_busy: str = OnBusy.WAIT,
    busy_wait_s: float = WAIT_S,
    patience: QuietWait | None = None,
    ended_early: Callable[[StepReport], None] = lambda report: None,
) -> StepReport:
    """Run `num_steps` steps of a training loop after its warm-up, and say where their time went.

    Args:
        target: FILE.py:FUNCTION or package.module:FUNCTION. The function either trains itself, or returns the parts of
            a loop, (model, optimizer, loader, loss), a TrainingWorkload, or a function that makes one step.
        num_steps: The number of steps to count.
        limit_s: Seconds after which the loop is stopped at the end of a step.
        on_busy: What to do if other processes disturb: "wait", "inconclusive" or "go-on".
        busy_wait_s: The total number of seconds to wait.
        patience: Replaces the two arguments above, if the caller shows the waiting.
        ended_early: Called with the partial report, if there is one, before an error is raised.

    Returns:
        The report. If the machine was busy, `busy` says so.

    Raises:
        TargetError: The target cannot be loaded, or does not train.
        ModelError: The loop raised, or the child process ended early.
        OptionError: An option is out of range.
    """
    if num_steps < 1:
        raise OptionError(f"the number of steps must be 1 or more, not {num_steps}")
    check_training_name(target)
    patience = patience or QuietWait(OnBusy.checked(on_busy), busy_wait_s)
    with tempfile.TemporaryDirectory(prefix="whet-step-") as scratch:
        report, failure = taken_quietly(patience, lambda: _seen(target, num_steps, limit_s, Path(scratch), ended_early))
    if failure is None and report.is_partial:
        failure = ModelError(
            f"{target} raised {report.ended_by}; the report is partial: it shows the steps before that"
        )
    if failure is not None:
        ended_early(report)
        raise failure
    return report


def look(target: str, num_steps: int, limit_s: float, directory: str) -> dict[str, Any]:
    """Return the report of a loop as JSON. This runs in the child, and notes the report so far every few seconds."""
    function = training_function(target)
    gc.collect()
    gc.freeze()  # garbage collections in the loop need not go through the objects that whet has loaded
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
