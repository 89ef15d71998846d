"""Tuning from end to end: examine the target, search, compare the finalists, judge, and write what was found."""

import contextlib
import datetime
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from torch import nn

from whet.errors import ModelError, OptionError, TargetError
from whet.files import write_whole
from whet.machine import describe
from whet.measure.isolate import FailureKind, Outcome
from whet.measure.quiet import WAIT_S, OnBusy, Patience
from whet.recipe import FILE as RECIPE
from whet.recipe import Evidence, Recipe
from whet.signature import Batch
from whet.techniques import TABLE
from whet.tuner.budget import Budget, BudgetEnded, Runner
from whet.tuner.command import command_line, without_password
from whet.tuner.conclusion import conclude
from whet.tuner.facts import TargetFacts
from whet.tuner.goal import Goal
from whet.tuner.outlook import Outlook
from whet.tuner.preparation import check_memory, checked_directory, open_study, prepare_work_directory
from whet.tuner.processes import forking
from whet.tuner.records import TrialRecord
from whet.tuner.report import write_report
from whet.tuner.result import FILE, Objective, Result
from whet.tuner.saving import save_model
from whet.tuner.search import SearchTime, search
from whet.tuner.study import Study
from whet.tuner.target_examination import ExaminationRequest, examine_target
from whet.tuner.trial_context import TrialContext
from whet.workload import Quality, Workload
from whet.workloads.handover import hand_over

_EXAMINATION_LIMIT_S = 180.0


class Listener:
    """Told how tuning goes on. Each method does nothing here; a command line shows progress by overriding them."""

    def looked(self, facts: TargetFacts) -> None:
        """The target has been examined."""

    def planned(self, outlook: Outlook) -> None:
        """The rest of the budget has been divided: what fits, and about how long it takes."""

    def tried(self, record: TrialRecord) -> None:
        """A trial has ended, or was stopped."""

    def waiting(self, text: str) -> None:
        """The machine is busy, and whet waits for quiet; "" once it goes on."""

    def measured(self, rounds_done: int, rounds: int) -> None:
        """A round of the finals has ended."""


def tune(
    target: str | nn.Module | Workload,
    inputs: Batch | Sequence[Batch] | None = None,
    *,
    quality: Quality | None = None,
    calibration: Sequence[Batch] = (),
    objective: Objective = "latency",
    max_drop: float = 0.01,
    max_memory_bytes: int | None = None,
    budget_s: float = 300.0,
    out: str | os.PathLike[str] | None = None,
    storage: str | None = None,
    resume: bool = False,
    exclude: Sequence[str] = (),
    trial_limit_s: float = 300.0,
    memory_limit_bytes: int | None = None,
    on_busy: str = OnBusy.WAIT,
    busy_wait_s: float = WAIT_S,
    listener: Listener | None = None,
) -> Result:
    """Find the fastest recipe for a model on this machine, and prove it.

    Args:
        target: A built-in workload's name, "hf:DIR", "FILE.py:FUNCTION", "package.module:FUNCTION", a Workload or a
            module.
        inputs: Of a module: one batch (a tensor, a tuple, a dict) or a list of batches.
        max_drop: How much of the quality may go, as a fraction of the original's. Without a quality: how far the
            outputs may lie from the original's (result.Agreement.distance).
        max_memory_bytes: Allowed peak resident memory of the whole process.
        budget_s: For everything, from the examination of the model to the report. What fits is planned; after 1.25
            times the budget and 10 s nothing runs any more. Where that is too little for a verdict, it is
            "inconclusive", and `needed_s` says what would do. Waiting for a quiet machine comes on top.
        out: A new directory for recipe, report, result and model; for a model in memory a temporary one by default.
        storage: An Optuna URL, for several machines of one kind to share a search.
        resume: Go on with the search that `out` or `storage` holds.
        exclude: Techniques not to be tried.
        trial_limit_s: Of each trial, where the budget leaves so much.
        memory_limit_bytes: Of each trial; nearly all of the machine's memory by default.
        on_busy: What to do where other processes disturb the measurements: "wait" for a quiet machine, and give no
            verdict where it stays busy; "inconclusive" gives none without waiting; "go-on" takes what is measured.
        busy_wait_s: Seconds to wait in all.

    Raises:
        WhetError: Anything the user can mend, before anything is written.
    """
    goal = Goal.checked(objective, max_drop, max_memory_bytes, budget_s)
    _check_excluded(exclude)
    began = datetime.datetime.now(datetime.UTC)
    check_memory(max_memory_bytes)
    if storage:
        Study.check_storage(storage)
    chosen = checked_directory(out, resume, has_own_study=not storage)
    listener = listener or Listener()
    patience = Patience(OnBusy.checked(on_busy), busy_wait_s, report=listener.waiting)
    budget = Budget(budget_s, clock=lambda: time.monotonic() - patience.spent_s)
    with (
        _prepared(target, inputs, quality, calibration) as (address, name, scratch),
        forking(memory_limit_bytes or describe().most_bytes) as unbounded,
    ):
        run = budget.bounded(unbounded)
        facts = _examined(run, address, scratch, exclude, budget_s, patience)
        listener.looked(facts)
        directory = chosen or Path(tempfile.mkdtemp(prefix="whet-"))
        study = open_study(storage, directory, name, goal, facts, resume, exclude)
        facts = facts if study.facts is None else facts.gone_on_with(study.facts)
        context = TrialContext(address, facts, prepare_work_directory(scratch, directory), run, trial_limit_s)
        result = _concluded(context, study, goal, budget, listener, patience)
        result.target, result.out = name, str(directory)
        result.started_at = began.isoformat(timespec="seconds")
        result.command = _command(target, goal, budget_s, storage, context.facts.exclude)
        _write(context, result, directory)
        result.seconds = budget.elapsed_s
        shutil.rmtree(context.directory, ignore_errors=True)
    if not isinstance(target, str):
        result.keep_original(target.model if isinstance(target, Workload) else target)
    return result


def _command(
    target: str | nn.Module | Workload, goal: Goal, budget_s: float, storage: str | None, exclude: Sequence[str]
) -> str:
    """The command line of the same search; "" for a model in memory, which has none."""
    if not isinstance(target, str):
        return ""
    shown = without_password(storage) if storage else None
    return command_line(target, **asdict(goal), budget_s=budget_s, storage=shown, exclude=exclude)


def _examined(
    run: Runner, address: str, scratch: Path, exclude: Sequence[str], budget_s: float, patience: Patience
) -> TargetFacts:
    """Wait for a quiet machine, and return the facts that a child found out about the target.

    No verdict hangs on the times among them, so they are not measured again where they were disturbed.
    """
    request = ExaminationRequest(target=address, directory=scratch, exclude=tuple(exclude))
    patience.begin()
    outcome = run(examine_target, request, scratch, _EXAMINATION_LIMIT_S)
    if isinstance(outcome.failure, BudgetEnded) and patience.cause:
        raise OptionError(
            f"to build, call and examine the model takes longer than a budget of {budget_s:g} s on this busy machine "
            f"({patience.cause}); try again when it is quiet, or give a larger --budget"
        )
    return _facts(outcome, budget_s)


def _concluded(
    context: TrialContext, study: Study, goal: Goal, budget: Budget, listener: Listener, patience: Patience
) -> Result:
    """Search, compare the best with the original, and return what was found."""
    records, outlook = _searched(context, study, goal, budget, listener, patience)
    result = conclude(context, goal, records, budget, outlook, listener.measured, patience)
    result.budget_s, result.outlook, result.seconds = budget.seconds, outlook.sentence, budget.elapsed_s
    return result


def _searched(
    context: TrialContext, study: Study, goal: Goal, budget: Budget, listener: Listener, patience: Patience
) -> tuple[list[TrialRecord], Outlook]:
    """Divide what is left of the budget, and search. Returns every record, and how the budget was divided."""
    earlier = study.records()
    outlook = Outlook.of(budget, context.facts, earlier)
    listener.planned(outlook)
    now = budget.clock()
    limit = SearchTime(now + outlook.search_s, now + outlook.stop_s, outlook.costs.trial_s, budget.clock)
    records = search(context, study, goal, limit, patience=patience, report=listener.tried)
    return records, outlook


def _facts(outcome: Outcome, budget_s: float) -> TargetFacts:
    """Return the facts that a child found out about the target. Raises the user error it met."""
    if isinstance(outcome.failure, BudgetEnded):
        raise OptionError(
            f"to build, call and examine the model takes longer than a budget of {budget_s:g} s; give a larger --budget"
        )
    if outcome.failure is not None:
        if outcome.failure.kind is FailureKind.TIMEOUT:
            raise ModelError(f"to build and call the model {outcome.failure.message}; does it wait for something?")
        raise outcome.failure.as_error()
    facts = outcome.answer(TargetFacts)
    assert facts is not None
    return facts


def _check_excluded(names: Sequence[str]) -> None:
    if unknown := [name for name in names if name not in TABLE]:
        raise OptionError(f"there is no technique {unknown[0]!r} to exclude; there are: {', '.join(TABLE)}")


@contextlib.contextmanager
def _prepared(
    target: str | nn.Module | Workload,
    inputs: Batch | Sequence[Batch] | None,
    quality: Quality | None,
    calibration: Sequence[Batch],
) -> Iterator[tuple[str, str, Path]]:
    """(how children name the target, how people do, a scratch directory for the examination)."""
    if isinstance(target, str) and inputs is not None:
        raise TargetError("inputs go with a model in memory; a named target brings its own")
    with tempfile.TemporaryDirectory(prefix="whet-examine-") as scratch:
        if isinstance(target, str):
            yield target, target, Path(scratch)
            return
        workload = target if isinstance(target, Workload) else workload_of(target, inputs, quality, calibration)
        yield hand_over(workload, Path(scratch) / "workload.pkl"), workload.name, Path(scratch)


def workload_of(
    model: nn.Module,
    inputs: Batch | Sequence[Batch] | None,
    quality: Quality | None = None,
    calibration: Sequence[Batch] = (),
) -> Workload:
    """Return a model in memory as a workload. Raises TargetError where it is no module or has no inputs."""
    if not isinstance(model, nn.Module):
        raise TargetError(f"tune takes a target's name, a Workload or a torch.nn.Module, not {type(model).__name__}")
    if inputs is None:
        raise TargetError("a model in memory needs inputs: one batch, or a list of batches")
    batches: Sequence[Batch] = inputs if isinstance(inputs, list) else [inputs]
    name = type(model).__name__
    return Workload(model=model.eval(), inputs=batches, quality=quality, calibration=tuple(calibration), name=name)


def _write(context: TrialContext, result: Result, directory: Path) -> None:
    """Model, recipe, report and result; the result last."""
    save_model(context, result, directory)
    recipe_of(result).write(directory / RECIPE)
    write_report(result, directory / "report.html")
    write_whole(directory / FILE, json.dumps(result.model_dump(mode="json"), indent=1) + "\n")


def recipe_of(result: Result) -> Recipe:
    """The winning recipe with its evidence."""
    best, baseline = result.best, result.baseline
    return Recipe(
        target=result.target,
        model=result.model,
        fingerprint=result.fingerprint,
        machine={k: list(v) if isinstance(v, tuple | list) else v for k, v in result.machine.items()},
        versions=result.versions,
        evidence=Evidence(
            verdict=result.verdict,
            objective=result.objective,
            speedup=best.speedup,
            speedup_ci95=best.speedup_ci95,
            baseline_latency_ms=baseline.latency_ms,
            latency_ms=best.latency_ms,
            num_pairs=len(best.process_latencies_ms),
            quality_name=result.quality_name,
            quality_baseline=1.0 if baseline.quality is None else baseline.quality,
            quality=1.0 if best.quality is None else best.quality,
            max_drop=result.max_drop,
            size_bytes_baseline=baseline.size_bytes,
            size_bytes=best.size_bytes,
            peak_bytes_baseline=baseline.peak_bytes,
            peak_bytes=best.peak_bytes,
            share_of_limit=best.share_of_limit,
        ),
        steps=best.steps,
    )
