"""Search: try recipe after recipe, each in a child process, until the plan or the time ends."""

import logging
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from whet.comparison.run import Run
from whet.core.recipe import Recipe
from whet.measure.isolate import Outcome
from whet.measure.machine import describe
from whet.measure.quiet import QuietWait
from whet.tuner.budget import BudgetEnded, bounded, run_within
from whet.tuner.budget_plan import MIN_TRIAL_S, TIMING_S
from whet.tuner.build import is_in_process
from whet.tuner.goal import Goal, ranked
from whet.tuner.plan import compile_only, next_recipe, runs_compiler
from whet.tuner.records import Status, TrialOutcome, TrialRecord
from whet.tuner.reloading import refusal
from whet.tuner.space import Space
from whet.tuner.study import Study
from whet.tuner.trial import TrialRequest, run_trial
from whet.tuner.trial_context import TrialContext

_LOG = logging.getLogger("whet")

_KEPT = 3  # artefacts of this many best trials stay on disk until the final comparison
_MAX_REPEATS = 8  # the search ends once the sampler has chosen this many known recipes in a row
_MEMORY_RUN_S = 0.3  # seconds of timing in the process that only measures memory
_LOOK_S = 0.2  # between looks at the trials of others
_NUM_LAST = 5  # trials that tell how long the next may take
_NUM_WITH_REFERENCE = 3  # torch.compile alone is tried where this many trials fit


@dataclass(frozen=True)
class SearchTime:
    """Hold how long a search may take.

    Attributes:
        deadline: No trial begins that is expected to end after this time, as `clock` tells.
        stop_at: When a trial that is still running is stopped.
        trial_s: About how many seconds a trial takes; used until one has been timed.
        compile_s: About how many seconds more a trial takes that runs a compiler; used until one has been timed.
        kept_s: Returns how many seconds before the deadline are kept for proving what the trials so far found.
        compiled: Returns whether a trial ran a compiler; `search_space` sets it.
    """

    deadline: float
    stop_at: float
    trial_s: float = 0.0
    clock: Callable[[], float] = time.monotonic
    compile_s: float = 0.0
    kept_s: Callable[[Sequence[TrialRecord]], float] = lambda records: 0.0
    compiled: Callable[[TrialRecord], bool] = lambda record: False

    def is_up(self, records: Sequence[TrialRecord], stopped: Sequence[TrialRecord]) -> bool:
        """Return whether no further trial begins. The first of a new search needs only two seconds."""
        now = self.clock()
        last = self.deadline - self.kept_s(records) if records else self.stop_at
        is_late = now + self.expected_s(records) > last
        return self.stop_at - now < MIN_TRIAL_S or (is_late and bool(records or stopped))

    def expected_s(self, records: Sequence[TrialRecord]) -> float:
        """Return how many seconds a trial without a compiler may take: as long as the longest of the last ones.

        One that has to be stopped is time lost, so their mean will not do.
        """
        return max(self._taken(records, compiled=False), default=self.trial_s)

    def compiling_s(self, records: Sequence[TrialRecord]) -> float:
        """Return how many seconds more a trial may take that runs a compiler."""
        taken = self._taken(records, compiled=True)
        return max(0.0, max(taken) - self.expected_s(records)) if taken else self.compile_s

    def _taken(self, records: Sequence[TrialRecord], *, compiled: bool) -> list[float]:
        """Return the seconds of the last trials that ran a compiler, or of those that ran none."""
        return [r.seconds for r in records if r.seconds > 0 and self.compiled(r) is compiled][-_NUM_LAST:]

    def allows_reference(self, records: Sequence[TrialRecord]) -> bool:
        """Return whether there is time for torch.compile alone, the reference, beside other trials."""
        needed_s = _NUM_WITH_REFERENCE * self.expected_s(records) + self.compiling_s(records)
        return self.clock() + needed_s <= self.deadline - self.kept_s(records)

    def allows_compiler(self, records: Sequence[TrialRecord]) -> bool:
        """Return whether a trial that runs a compiler would end before the deadline."""
        compiling_s = self.compiling_s(records)
        needed_s = self.expected_s(records) + compiling_s
        return not compiling_s or self.clock() + needed_s <= self.deadline - self.kept_s(records)

    def left_s(self, *, is_reference: bool) -> float:
        """Return how many seconds a trial may take: all that are left, and half of them for the reference."""
        return (self.stop_at - self.clock()) * (0.5 if is_reference else 1.0)


def search_space(
    space: Space,
    study: Study,
    goal: Goal,
    limit: SearchTime,
    attempt: Callable[[int, Recipe, float], TrialRecord],
    *,
    propose: Callable[..., Recipe | None] | None = None,
    samples: bool = True,
    tidy: Callable[[Sequence[TrialRecord]], None] = lambda records: None,
    max_trials: int = 200,
    patience: QuietWait | None = None,
    report: Callable[[TrialRecord], None] = lambda record: None,
) -> list[TrialRecord]:
    """Try recipes until the time is up, the plan ends, or `max_trials` are made.

    A trial begins if it is expected to end before the deadline. As long as no trial has ended, `stop_at` replaces the
    deadline, and the very first trial needs only two seconds. torch.compile alone, the reference, is left out where
    fewer than three trials and its compiler fit, and may take half of the time left. So are other recipes that run a
    compiler, where it would not end before the deadline and another recipe has succeeded. A trial that other processes
    disturbed is measured again as long as `patience` lasts. Trials that were stopped or disturbed can be tried again
    later. After KeyboardInterrupt the study can be resumed.

    Args:
        attempt: Tries a recipe, given the trial's number, the recipe and the seconds that are left.
        propose: Names the next recipe, given the trials and what there is time for; see next_recipe.
        samples: Whether the sampler chooses once no recipe is proposed.
        tidy: Is given all records after each trial, to remove what is no longer needed.
        max_trials: How many trials the study may hold.
        report: Is told of every trial that ended or was stopped.

    Returns:
        Every record of the study, and those of the trials that were stopped.
    """
    patience = patience or QuietWait()
    propose = propose or partial(next_recipe, space, goal=goal)
    limit = replace(limit, compiled=lambda record: runs_compiler(space, record.steps))
    records = study.records()
    stopped: list[TrialRecord] = []
    repeats = 0  # how many known recipes the sampler has chosen in a row
    while len(records) < max_trials and not patience.has_run_out:
        if limit.is_up(records, stopped):
            _LOG.info("the time is used up after %d trials", len(records))
            break
        known = [*records, *stopped]
        may_compile = limit.allows_compiler(records)
        recipe = propose(records=known, with_reference=limit.allows_reference(records), may_compile=may_compile)
        if recipe is None and (not samples or not space.techniques or repeats >= _MAX_REPEATS):
            if not any(record.status == "running" and study.will_end(record.number) for record in records):
                break
            time.sleep(_LOOK_S)  # what others try now may lead on
            records = study.records()
            continue
        number, chosen = study.begin(recipe, space, space.bound(recipe.steps) if recipe else None)
        is_too_long = not may_compile and runs_compiler(space, chosen.steps)
        is_known = not chosen.steps or is_too_long or any(record.key == chosen.key for record in known)
        if (recipe is None and is_known) or study.is_taken(number, chosen):
            study.pass_over(number)
            repeats += recipe is None
            records = study.records()
            continue
        left_s = limit.left_s(is_reference=_is_reference(chosen, space))
        trial = partial(attempt, number, chosen, left_s)
        record = _tried(trial, study, number, goal, patience)
        report(record)
        if record.status == "stopped":
            stopped.append(record)
            continue
        repeats = 0
        records = study.records()
        tidy(records)
    return [*records, *stopped]


def _is_reference(recipe: Recipe, space: Space) -> bool:
    reference = compile_only(space)
    return reference is not None and recipe.key == reference.key


def _tried(trial: Callable[[], TrialRecord], study: Study, number: int, goal: Goal, patience: QuietWait) -> TrialRecord:
    """Run a trial and keep its record in the study. One that was stopped or disturbed is left to be tried again."""
    try:
        record = patience.measure(trial, lambda found: found.busy)
    except BaseException:
        study.give_up(number)
        raise
    if record.status == "stopped" or (record.busy and not patience.goes_on):
        study.give_up(number)
    else:
        study.end(record, goal.value(record) if record.status in ("done", "rejected") else None)
    return record


def try_recipe(
    context: TrialContext, goal: Goal, number: int, recipe: Recipe, space: Space, time_left_s: float
) -> TrialRecord:
    """Build, save, load, judge and time a recipe in a fresh process. A failure there is recorded.

    A trial that needs more than `time_left_s`, the seconds of the budget that are left, is recorded as stopped.
    """
    started = time.perf_counter()
    request = TrialRequest(
        known=context.known,
        steps=recipe.steps,
        directory=context.artefact(number),
        max_drop=goal.max_drop,
        timing_s=TIMING_S,
    )
    folder = context.directory / f"trial-{number}"
    outcome = run_within(context.run, run_trial, request, folder, limit_s=context.trial_limit_s, left_s=time_left_s)
    found = outcome.answer(TrialOutcome) or without_answer(outcome)
    record = TrialRecord(
        **dict(found),
        number=number,
        steps=recipe.steps,
        predicted=space.bound(recipe.steps),
        fingerprint=describe().fingerprint,
        share_of_limit=None
        if found.busy or not found.latency_ms
        else context.share_of_limit(recipe.steps, found.latency_ms),
    )
    if record.status == "done" and record.libraries:
        record = reloaded(context, record)
    if record.status == "done" and goal.needs_memory:
        record = _with_memory(context, goal, record, time_left_s - (time.perf_counter() - started))
    return record.model_copy(update={"seconds": time.perf_counter() - started})


def without_answer(outcome: Outcome) -> TrialOutcome:
    """Return the outcome of a trial whose process gave no answer."""
    status: Status = "stopped" if isinstance(outcome.failure, BudgetEnded) else "failed"
    return TrialOutcome(status=status, reason=outcome.failure.message if outcome.failure else "no result")


def reloaded(context: TrialContext, record: TrialRecord) -> TrialRecord:
    """Return the record, as failed where a fresh process cannot load and run the trial's artefact."""
    if is_in_process(record.steps):
        return record
    failure = context.reload_failure(context.artefact(record.number), record.libraries)
    return record if failure is None else record.model_copy(update={"status": "failed", "reason": refusal(failure)})


def _with_memory(context: TrialContext, goal: Goal, record: TrialRecord, time_left_s: float) -> TrialRecord:
    """Return the record with the memory of a process that serves the variant. It is rejected if that is too much."""
    folder = context.directory / f"trial-{record.number}" / "memory"
    within = replace(context, run=bounded(context.run, lambda: time_left_s))
    outcome = within.measure(record, folder, _MEMORY_RUN_S, context.trial_limit_s)
    run = outcome.answer(Run)
    if run is None:
        lost = without_answer(outcome)
        return record.model_copy(update={"status": lost.status, "reason": lost.reason})
    record = record.model_copy(update={"peak_bytes": run.peak_bytes})
    if goal.max_memory_bytes is None or run.peak_bytes <= goal.max_memory_bytes:
        return record
    reason = (
        f"peak memory {run.peak_bytes / 2**20:,.0f} MiB, more than the {goal.max_memory_bytes / 2**20:,.0f} MiB allowed"
    )
    return record.model_copy(update={"status": "rejected", "rejected_for": "memory", "reason": reason})


def drop_losers(context: TrialContext, goal: Goal, records: Sequence[TrialRecord]) -> None:
    """Delete the artefacts of all trials but the best three."""
    keep = {record.number for record in ranked(goal, records)[:_KEPT]}
    for record in records:
        if record.number not in keep:
            shutil.rmtree(context.artefact(record.number), ignore_errors=True)
