"""Tune from end to end: examine the target, search, compare the finalists, judge, and write what was found."""

import contextlib
import datetime
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from torch import nn

from whet.errors import ModelError, OptionError, TargetError, TrainingTarget
from whet.files import write_whole
from whet.machine import describe
from whet.measure.isolate import FailureKind, Outcome
from whet.measure.quiet import WAIT_S, OnBusy, Patience
from whet.recipe import FILE as RECIPE
from whet.signature import Batch
from whet.techniques import TABLE
from whet.techniques.names import check_excluded
from whet.techniques.training import TRAINING_TABLE
from whet.tuner.budget import Budget, BudgetEnded, Runner
from whet.tuner.command import command_line, without_password
from whet.tuner.conclusion import conclude
from whet.tuner.facts import TargetFacts
from whet.tuner.goal import BUDGET_S, MAX_SLOWDOWN, Goal, Objective
from whet.tuner.listener import Listener
from whet.tuner.outlook import Outlook, saving_s
from whet.tuner.preparation import check_memory, checked_directory, open_study, prepare_work_directory
from whet.tuner.processes import forking, training_processes
from whet.tuner.proven_recipe import recipe_of
from whet.tuner.records import TrialRecord
from whet.tuner.report import write_report
from whet.tuner.result import FILE, Result
from whet.tuner.saving import save_model
from whet.tuner.search import SearchTime, search
from whet.tuner.study import Study
from whet.tuner.target_examination import ExaminationRequest, examine_target
from whet.tuner.training.tuning import TrainingPlan, tune_training
from whet.tuner.trial_context import TrialContext
from whet.units import duration_s
from whet.workload import Quality, TrainingWorkload, Workload
from whet.workloads.fine_tuning import trained_by
from whet.workloads.handover import hand_over
from whet.workloads.target_name import check_name, is_training, with_training
from whet.workloads.text_encoder import identity_of

_EXAMINATION_LIMIT_S = 180.0


@dataclass(frozen=True)
class Prepared:
    """Describe a target that child processes can open.

    Attributes:
        address: How child processes name it.
        name: How people name it.
        scratch: A directory for the files of its examination.
        is_in_memory: Whether it was handed over as an object, so that no command line names it.
    """

    address: str
    name: str
    scratch: Path
    is_in_memory: bool = False


@dataclass(frozen=True)
class Plan:
    """Hold what a search is asked for. The attributes are tune's arguments."""

    goal: Goal
    budget_s: float
    out: str
    storage: str
    resume: bool
    exclude: tuple[str, ...]
    trial_limit_s: float
    memory_limit_bytes: int | None

    def checked_directory(self) -> Path | None:
        """Check everything that can be checked before the work, and return the output directory, if one was given."""
        if self.storage:
            Study.check_storage(self.storage)
        return checked_directory(self.out or None, self.resume, has_own_study=not self.storage)

    def command(self, target: Prepared, exclude: Sequence[str]) -> str:
        """Return the command line of the same search; "" for a model in memory, which has none."""
        if target.is_in_memory:
            return ""
        shown = without_password(self.storage) if self.storage else None
        goal = {name: value for name, value in asdict(self.goal).items() if name != "is_default_drop"}
        return command_line(target.name, **goal, budget_s=self.budget_s, storage=shown, exclude=exclude)


def tune(
    target: str | nn.Module | Workload | TrainingWorkload,
    inputs: Batch | Sequence[Batch] | None = None,
    *,
    quality: Quality | None = None,
    calibration: Sequence[Batch] = (),
    training: str | TrainingWorkload | None = None,
    objective: Objective = "latency",
    max_drop: float | None = None,
    max_slowdown: float = MAX_SLOWDOWN,
    allow_batch: bool = False,
    max_memory_bytes: int | None = None,
    budget_s: float | str = BUDGET_S,
    out: str | os.PathLike[str] | None = None,
    storage: str | None = None,
    resume: bool = False,
    exclude: Sequence[str] = (),
    trial_limit_s: float | str = 300.0,
    memory_limit_bytes: int | None = None,
    on_busy: str = OnBusy.WAIT,
    busy_wait_s: float | str = WAIT_S,
    listener: Listener | None = None,
) -> Result:
    """Find the fastest recipe for a model on this machine, and prove it.

    Args:
        target: A built-in workload's name, "hf:DIR", "FILE.py:FUNCTION", "package.module:FUNCTION", a Workload or a
            module.
        inputs: For a module, one batch (a tensor, a tuple, a dict) or a list of batches.
        quality: How outputs are scored. Without one, their agreement with the original's outputs is judged.
        calibration: Batches for quantisers, and for comparing outputs; `inputs` by default.
        training: The training that the model came from, or its name, for techniques that prune the model and train it
            further. Without one, nothing is pruned.
        objective: What to improve: "latency", "throughput", "memory" or "size".
        max_drop: The allowed drop in quality, as a fraction of the original's; 0.01 by default. Without a quality: the
            allowed distance of the outputs from the original's (records.Agreement.distance). For a training: the
            allowed rise of the held-out loss, 0.0025 by default.
        max_slowdown: For the memory of a training: how many times the original's time a step may take.
        allow_batch: For a training: also measure larger batches, after equal numbers of samples, with the learning rate
            that is customary for them. They are no part of the recipe.
        max_memory_bytes: Allowed peak resident memory of the whole process; for a training, what a step may take above
            what the process held before the model was built.
        budget_s: Seconds for everything, or text such as "5m", from the examination of the model to the report. After
            1.25 times the budget and 10 s nothing runs any more. If the budget is too small for a verdict, the verdict
            is "inconclusive", and `needed_s` is a budget that is large enough. Waiting for a quiet machine comes on
            top.
        out: A new directory for recipe, report, result and model; for a model in memory a temporary one by default.
        storage: An Optuna URL, for several machines of one kind to share a search.
        resume: Go on with the search that `out` or `storage` holds.
        exclude: Techniques not to be tried.
        trial_limit_s: The time limit of each trial in seconds, unless the budget leaves less.
        memory_limit_bytes: The memory limit of each trial; nearly all of the machine's memory by default.
        on_busy: What to do where other processes disturb the measurements. "wait" waits for a quiet machine, and gives
            no verdict if it stays busy. "inconclusive" gives no verdict, without waiting. "go-on" uses the measurements
            as they are.
        busy_wait_s: Seconds to wait for a quiet machine in all.
        listener: Is told of the progress.

    Raises:
        WhetError: Anything the user can mend, before anything is written.
    """
    budget_s, trial_limit_s = duration_s("budget_s", budget_s), duration_s("trial_limit_s", trial_limit_s)
    busy_wait_s = duration_s("busy_wait_s", busy_wait_s, may_be_zero=True)
    if isinstance(target, str):
        target = _named(target, training)
        check_name(target)
    goal = Goal.checked(objective, max_drop, max_memory_bytes, budget_s, max_slowdown, allow_batch=allow_batch)
    place = "" if out is None else os.fspath(out)
    plan = Plan(goal, budget_s, place, storage or "", resume, tuple(exclude), trial_limit_s, memory_limit_bytes)
    listener = listener or Listener()
    patience = Patience(OnBusy.checked(on_busy), busy_wait_s, report=listener.waiting)
    if isinstance(target, TrainingWorkload) or is_training(target):
        if training is not None:
            raise OptionError("training goes with a model to run; this target is a training itself")
        return _trained(plan, _prepared(target, inputs, quality, calibration), patience, listener)
    may_be_training = isinstance(target, str) and ":" in target and not target.startswith("hf:")
    if not may_be_training:
        goal.check_for_model()
    check_excluded(plan.exclude, [*TABLE, *TRAINING_TABLE] if may_be_training else list(TABLE))
    try:
        prepared = _prepared(target, inputs, quality, calibration, training)
        result = _tuned(plan, prepared, patience, listener, may_be_training=may_be_training)
    except TrainingTarget:
        return _trained(plan, _prepared(target, inputs, quality, calibration), patience, listener)
    if not isinstance(target, str):
        result.keep_original(target.model if isinstance(target, Workload) else target)
    return result


def _trained(plan: Plan, preparing: AbstractContextManager[Prepared], patience: Patience, listener: Listener) -> Result:
    """Tune a training run."""
    check_excluded(plan.exclude, list(TRAINING_TABLE))
    goal, directory = plan.goal.for_training(), plan.checked_directory()
    listener.begins()
    limit = plan.memory_limit_bytes or describe().most_bytes
    patience.begin()  # before the server of forks begins to import: its seconds are measured
    with preparing as target, training_processes(limit) as processes:
        asked = TrainingPlan(
            goal=goal,
            budget_s=plan.budget_s,
            directory=directory or Path(tempfile.mkdtemp(prefix="whet-")),
            storage=plan.storage,
            resume=plan.resume,
            exclude=plan.exclude,
            trial_limit_s=plan.trial_limit_s,
        )
        return tune_training(
            target.address, target.name, asked, processes, patience, listener, plan.command(target, plan.exclude)
        )


def _tuned(
    plan: Plan,
    preparing: AbstractContextManager[Prepared],
    patience: Patience,
    listener: Listener,
    *,
    may_be_training: bool,
) -> Result:
    """Examine the target, search, conclude, and write everything into the output directory."""
    began = datetime.datetime.now(datetime.UTC)
    if not may_be_training:
        check_memory(plan.goal.max_memory_bytes)
    chosen = plan.checked_directory()
    listener.begins()
    budget = Budget(plan.budget_s, clock=lambda: time.monotonic() - patience.spent_s)
    with preparing as target, forking(plan.memory_limit_bytes or describe().most_bytes) as unbounded:
        run = budget.bounded(unbounded)
        facts = _examined(run, target, plan, patience)
        plan.goal.check_for_model()
        if may_be_training:  # the memory of a training is what it adds to such a process
            check_memory(plan.goal.max_memory_bytes)
        listener.looked(facts)
        directory = chosen or Path(tempfile.mkdtemp(prefix="whet-"))
        study = open_study(plan.storage, directory, target.name, plan.goal, facts, plan.resume, plan.exclude)
        facts = facts if study.facts is None else facts.gone_on_with(study.facts)
        work = prepare_work_directory(target.scratch, directory)
        searching = budget.keeping(saving_s(budget, facts, study.records()))
        context = TrialContext(target.address, facts, work, searching.bounded(unbounded), plan.trial_limit_s)
        result = _concluded(context, study, plan.goal, searching, listener, patience)
        result.target, result.out = target.name, str(directory)
        result.model_directory, result.model_type = identity_of(target.name)
        result.started_at = began.isoformat(timespec="seconds")
        result.command = plan.command(target, facts.exclude)
        _write(replace(context, run=run), result, directory)
        result.seconds = budget.elapsed_s
        shutil.rmtree(context.directory, ignore_errors=True)
    return result


def _examined(run: Runner, target: Prepared, plan: Plan, patience: Patience) -> TargetFacts:
    """Wait for a quiet machine, and return the facts that a child process found out about the target.

    Disturbed times among them are not measured again, since no verdict depends on them.
    """
    request = ExaminationRequest(target=target.address, directory=target.scratch, exclude=plan.exclude)
    patience.begin()
    outcome = run(examine_target, request, target.scratch, _EXAMINATION_LIMIT_S)
    if isinstance(outcome.failure, BudgetEnded) and patience.cause:
        raise OptionError(
            f"to build, call and examine the model takes longer than a budget of {plan.budget_s:g} s on this busy "
            f"machine ({patience.cause}); try again when it is quiet, or give a larger --budget"
        )
    return _facts(outcome, plan.budget_s)


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
    """Divide what is left of the budget, and search. Return every record, and how the budget was divided."""
    earlier = study.records()
    outlook = Outlook.of(budget, context.facts, earlier)
    listener.planned(outlook)
    now = budget.clock()
    costs = outlook.costs
    limit = SearchTime(now + outlook.search_s, now + outlook.stop_s, costs.trial_s, budget.clock, costs.compile_s)
    records = search(context, study, goal, limit, patience=patience, report=listener.tried)
    return records, outlook


def _facts(outcome: Outcome, budget_s: float) -> TargetFacts:
    """Return the facts that a child process found out about the target.

    Raises:
        WhetError: The error that the process met.
    """
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
    return facts.model_copy(update={"start_s": max(0.0, outcome.seconds - facts.examined_s - facts.limits_s)})


@contextlib.contextmanager
def _prepared(
    target: str | nn.Module | Workload | TrainingWorkload,
    inputs: Batch | Sequence[Batch] | None,
    quality: Quality | None,
    calibration: Sequence[Batch],
    training: str | TrainingWorkload | None = None,
) -> Iterator[Prepared]:
    """Hand a target over to child processes, with a scratch directory for its examination."""
    if isinstance(target, str) and inputs is not None:
        raise TargetError("inputs go with a model in memory; a named target brings its own")
    with tempfile.TemporaryDirectory(prefix="whet-examine-") as scratch:
        if isinstance(target, str) and isinstance(training, TrainingWorkload):
            address = with_training(target, hand_over(training, Path(scratch) / "training.pkl"))
            yield Prepared(address, target, Path(scratch), is_in_memory=True)
            return
        if isinstance(target, str):
            yield Prepared(target, target, Path(scratch))
            return
        workload = (
            target
            if isinstance(target, Workload | TrainingWorkload)
            else workload_of(target, inputs, quality, calibration)
        )
        if training is not None and isinstance(workload, Workload):
            workload = trained_by(workload, training)
        address = hand_over(workload, Path(scratch) / "workload.pkl")
        yield Prepared(address, workload.name, Path(scratch), is_in_memory=True)


def _named(target: str, training: str | TrainingWorkload | None) -> str:
    """Return a target's name together with that of its training, where that has one."""
    return with_training(target, training) if isinstance(training, str) else target


def workload_of(
    model: nn.Module,
    inputs: Batch | Sequence[Batch] | None,
    quality: Quality | None = None,
    calibration: Sequence[Batch] = (),
) -> Workload:
    """Return a model in memory as a workload.

    Raises:
        TargetError: It is no module, or has no inputs.
    """
    if not isinstance(model, nn.Module):
        raise TargetError(f"tune takes a target's name, a Workload or a torch.nn.Module, not {type(model).__name__}")
    if inputs is None:
        raise TargetError("a model in memory needs inputs: one batch, or a list of batches")
    batches: Sequence[Batch] = inputs if isinstance(inputs, list) else [inputs]
    name = type(model).__name__
    return Workload(model=model.eval(), inputs=batches, quality=quality, calibration=tuple(calibration), name=name)


def _write(context: TrialContext, result: Result, directory: Path) -> None:
    """Write the model, the recipe, the report and, last, the result."""
    save_model(context, result, directory)
    recipe_of(result).write(directory / RECIPE)
    write_report(result, directory / "report.html")
    write_whole(directory / FILE, json.dumps(result.model_dump(mode="json"), indent=1) + "\n")
