"""The search: recipe after recipe, each in a process of its own, until the plan or the time is at its end."""

import contextlib
import logging
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from whet.machine import describe
from whet.measure.allocator import steady
from whet.measure.fork_server import ForkServer
from whet.measure.isolate import QUIET, Function, Outcome, run_isolated
from whet.measure.quiet import Patience
from whet.recipe import Recipe
from whet.tuner.budget import BudgetEnded, Runner, run_within
from whet.tuner.build import is_in_process
from whet.tuner.facts import TargetFacts
from whet.tuner.goal import Goal, ranked
from whet.tuner.in_process import measure_rebuilt
from whet.tuner.outlook import MIN_TRIAL_S, TIMING_S
from whet.tuner.plan import compile_only, next_recipe
from whet.tuner.reloading import reload_refusal
from whet.tuner.result import TrialRecord
from whet.tuner.space import Space
from whet.tuner.study import Study
from whet.tuner.trial import attempt, mean_least_time_s
from whet.tuner.variant_process import INPUTS, measure_finalist

_LOG = logging.getLogger("whet")

_KEPT = 3  # artefacts of this many best trials stay on disk until the finals
_MAX_REPEATS = 8  # after so many recipes in a row that have been measured, the sampler has nothing new
_MEMORY_RUN_S = 0.3  # of timing in the process that only measures memory
_NUM_WITH_REFERENCE = 3  # torch.compile alone is tried where so many trials fit

# What every trial imports. Not runtimes that a recipe may not name: some patch torch as they are imported.
_PRELOAD = ("whet.tuner.trial", "torch.export._trace")


@dataclass(frozen=True)
class Workbench:
    """Where a search works: the target, what was found out about it, and how children are run."""

    target: str
    facts: TargetFacts
    directory: Path
    run: Runner
    trial_limit_s: float = 300.0

    @property
    def space(self) -> Space:
        return Space(self.facts.offers)

    @property
    def inputs(self) -> Path:
        return self.directory / INPUTS

    def artefact(self, number: int) -> Path:
        return self.directory / f"trial-{number}" / "artefact"

    def measure(self, record: TrialRecord | None, folder: Path, budget_s: float, limit_s: float) -> Outcome:
        """Time one variant in a fresh process: the original (None), a trial's artefact, or what its recipe makes."""
        if record is not None and is_in_process(record.steps):
            steps = [step.model_dump() for step in record.steps]
            arguments = {"target": self.target, "steps": steps, "signature": self.facts.signature_json}
            return self.run(measure_rebuilt, {**arguments, "budget_s": budget_s}, folder, limit_s)
        directory = None if record is None else self.artefact(record.number)
        return self.measure_artefact(directory, record.libraries if record else (), folder, budget_s, limit_s)

    def measure_artefact(
        self, directory: Path | None, libraries: Sequence[str], folder: Path, budget_s: float, limit_s: float
    ) -> Outcome:
        """Time an artefact in a fresh process that has none of the target's code; None: the original."""
        arguments = {
            "target": self.target,
            "directory": None if directory is None else str(directory),
            "inputs": str(self.inputs),
            "budget_s": budget_s,
            "num_threads": self.facts.num_threads,
            "libraries": list(libraries),
            "places": self.facts.sys_path,
        }
        return self.run(measure_finalist, arguments, folder, limit_s)

    def share_of_limit(self, steps: Sequence[Any], latency_ms: float) -> float:
        """The least time the machine's limits allow, in the dtype the recipe computes in, over the time measured."""
        least = mean_least_time_s(self.facts.profiles, self.facts.limits, steps)
        return least * 1e3 / latency_ms


def isolated(memory_limit_bytes: int | None, server: ForkServer | None = None) -> Runner:
    """Return a runner of real processes under a memory limit. Trials are forks of `server`, if there is one."""

    def run(function: Function, arguments: dict[str, Any], directory: Path, time_limit_s: float) -> Outcome:
        return run_isolated(
            function,
            arguments,
            directory,
            time_limit_s=time_limit_s,
            memory_limit_bytes=memory_limit_bytes,
            environment={**QUIET, **steady()},
            start=server.start if server is not None and function.__module__ == _PRELOAD[0] else None,
        )

    return run


@contextlib.contextmanager
def forking(memory_limit_bytes: int | None) -> Iterator[Runner]:
    """A runner whose trials are forks of one process that has imported what they need: that saves each of them two or
    three seconds. Fresh processes where forks cannot be relied on: elsewhere than on Linux, and beside a GPU, whose
    driver is of no use after a fork if anything that was imported has asked it for devices."""
    if sys.platform != "linux" or describe().gpu:
        yield isolated(memory_limit_bytes)
        return
    with ForkServer(_PRELOAD, {**QUIET, **steady()}) as server:
        yield isolated(memory_limit_bytes, server)


def search(
    bench: Workbench,
    study: Study,
    goal: Goal,
    *,
    deadline: float,
    stop_at: float | None = None,
    trial_s: float = 0.0,
    max_trials: int = 200,
    patience: Patience | None = None,
    report: Callable[[TrialRecord], None] = lambda record: None,
    clock: Callable[[], float] = time.monotonic,
) -> list[TrialRecord]:
    """Try recipes until `deadline` (as `clock` tells), the plan's end, or `max_trials`.

    A trial is begun if it is expected to end before the deadline; as long as no trial has ended, before `stop_at`. The
    first of a new search is always begun, if only two seconds are left. A trial that is still at work at `stop_at` is
    stopped, and left in the study to be tried again. torch.compile alone, the reference, is left out where fewer than
    three trials fit, and may take half of the time left. KeyboardInterrupt leaves the study as it is, to be resumed.
    A trial that other processes disturbed is measured again as long as `patience` lasts; where the machine stays busy,
    it is left in the study to be tried again.

    Args:
        stop_at: the deadline, if not given.
        trial_s: about how long a trial takes, before one has been seen.
        patience: how long to wait for a quiet machine.
        report: is told of every trial that ended or was stopped.

    Returns:
        Every record of the study, and those of the trials that were stopped.
    """
    patience = patience or Patience()
    space = bench.space
    reference = compile_only(space)
    stop_at = deadline if stop_at is None else stop_at
    records = study.records()
    stopped: list[TrialRecord] = []
    repeats = 0  # of the sampler, in a row
    while len(records) < max_trials and not patience.has_run_out:
        expected = _expected_s(records) or trial_s
        is_late = clock() + expected > (deadline if records else stop_at)
        if stop_at - clock() < MIN_TRIAL_S or (is_late and (records or stopped)):
            _LOG.info("the time is used up after %d trials", len(records))
            break
        is_short = clock() + _NUM_WITH_REFERENCE * expected > deadline
        recipe = next_recipe(space, [*records, *stopped], goal, with_reference=not is_short)
        if recipe is None and (not space.offers or repeats >= _MAX_REPEATS):
            break
        number, chosen = study.begin(recipe, space, space.bound(list(recipe)) if recipe else None)
        if recipe is None and (not chosen.steps or any(r.label == str(chosen) for r in [*records, *stopped])):
            study.pass_over(number)
            repeats += 1
            continue
        left_s = (stop_at - clock()) * (0.5 if reference is not None and str(chosen) == str(reference) else 1.0)
        trial = partial(try_recipe, bench, goal, number, chosen, space, left_s)
        record = _tried(trial, study, number, goal, patience)
        report(record)
        if record.status == "stopped":
            stopped.append(record)
            continue
        repeats = 0
        records = study.records()
        _drop_losers(bench, goal, records)
    return [*records, *stopped]


def _tried(trial: Callable[[], TrialRecord], study: Study, number: int, goal: Goal, patience: Patience) -> TrialRecord:
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
    bench: Workbench, goal: Goal, number: int, recipe: Recipe, space: Space, time_left_s: float
) -> TrialRecord:
    """Build, save, load, judge and time a recipe in a fresh process; a failure there is recorded.

    time_left_s: of the budget. A trial that needs more is recorded as stopped.
    """
    started = time.perf_counter()
    folder = bench.directory / f"trial-{number}"
    record = TrialRecord(
        number=number,
        steps=list(recipe),
        status="failed",
        predicted=space.bound(list(recipe)),
        fingerprint=describe().fingerprint,
    )
    outcome = run_within(
        bench.run,
        attempt,
        {
            "target": bench.target,
            "steps": [step.model_dump() for step in recipe],
            "signature": bench.facts.signature_json,
            "directory": str(bench.artefact(number)),
            "score": bench.facts.score,
            "max_drop": goal.max_drop,
            "timing_s": TIMING_S,
            "sample_scores": bench.facts.sample_scores,
            "batch": bench.facts.batch.model_dump(),
        },
        folder,
        limit_s=bench.trial_limit_s,
        left_s=time_left_s,
    )
    if outcome.failure is not None:
        record.status = "stopped" if isinstance(outcome.failure, BudgetEnded) else "failed"
        record.reason = outcome.failure.message
    elif outcome.value is not None:
        record = TrialRecord.model_validate({**record.model_dump(), **outcome.value})
    if record.status == "done" and record.libraries:
        loads_afresh(bench, record)
    if record.latency_ms:
        record.share_of_limit = bench.share_of_limit(record.steps, record.latency_ms)
    if record.status == "done" and goal.needs_memory:
        _measure_memory(bench, goal, record, time_left_s - (time.perf_counter() - started))
    record.seconds = time.perf_counter() - started
    return record


def loads_afresh(bench: Workbench, record: TrialRecord) -> bool:
    """Return whether a fresh process can load and run a trial's artefact; where it cannot, the trial has failed.

    A recipe that works in process has no artefact.
    """
    if is_in_process(record.steps):
        return True
    why = reload_refusal(
        bench.run,
        bench.artefact(record.number),
        inputs=bench.inputs,
        libraries=record.libraries,
        places=bench.facts.sys_path,
        num_threads=bench.facts.num_threads,
    )
    if why:
        record.status, record.reason = "failed", why
    return not why


def _measure_memory(bench: Workbench, goal: Goal, record: TrialRecord, time_left_s: float) -> None:
    folder = bench.directory / f"trial-{record.number}" / "memory"

    def bounded(function: Function, arguments: dict[str, Any], directory: Path, time_limit_s: float) -> Outcome:
        return run_within(bench.run, function, arguments, directory, limit_s=time_limit_s, left_s=time_left_s)

    outcome = replace(bench, run=bounded).measure(record, folder, _MEMORY_RUN_S, bench.trial_limit_s)
    if outcome.value is None:
        record.status = "stopped" if isinstance(outcome.failure, BudgetEnded) else "failed"
        record.reason = outcome.failure.message if outcome.failure else "no result"
        return
    record.peak_bytes = outcome.value["peak_bytes"]
    if goal.max_memory_bytes is not None and record.peak_bytes > goal.max_memory_bytes:
        record.status = "rejected"
        record.reason = (
            f"peak memory {record.peak_bytes / 2**20:,.0f} MiB, more than the "
            f"{goal.max_memory_bytes / 2**20:,.0f} MiB allowed"
        )


def _drop_losers(bench: Workbench, goal: Goal, records: Sequence[TrialRecord]) -> None:
    keep = {record.number for record in ranked(goal, records)[:_KEPT]}
    for record in records:
        if record.number not in keep:
            shutil.rmtree(bench.artefact(record.number), ignore_errors=True)


def _expected_s(records: Sequence[TrialRecord]) -> float:
    """What the next trial may take: the mean of those so far."""
    taken = [r.seconds for r in records if r.seconds > 0]
    return sum(taken) / len(taken) if taken else 0.0
