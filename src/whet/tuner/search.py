"""The search: recipe after recipe, each in a process of its own, until the plan or the time is at its end."""

import contextlib
import logging
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import TypeAdapter

from whet.machine import Limits, describe
from whet.measure.fork_server import ForkServer
from whet.measure.isolate import QUIET, Outcome, run_isolated
from whet.profiler import Profile
from whet.recipe import Recipe
from whet.tuner.finalist import INPUTS
from whet.tuner.goal import Goal, ranked
from whet.tuner.plan import next_recipe
from whet.tuner.result import TrialRecord
from whet.tuner.space import Offer, Space
from whet.tuner.study import Study
from whet.tuner.trial import mean_least_time_s

_LOG = logging.getLogger("whet")

_KEPT = 3  # artefacts of this many best trials stay on disk until the finals
_TIMING_S = 2.4  # of interleaved timing in a trial
_MAX_REPEATS = 8  # after so many recipes in a row that have been measured, the sampler has nothing new
_MEMORY_RUN_S = 0.3  # of timing in the process that only measures memory

# What every trial imports. Not runtimes that a recipe may not name: some patch torch as they are imported.
_PRELOAD = ("whet.tuner.trial", "torch.export._trace")
_ROOMS = {"measure_finalist": "finalist"}  # function of a child -> its module, where it is not `trial`

_LIMITS = TypeAdapter(Limits)
_PROFILES = TypeAdapter(list[tuple[Profile, int]])


class Runner(Protocol):
    """Calls a function of whet.tuner.trial or .finalist in a process of its own."""

    def __call__(self, function: str, arguments: dict[str, Any], directory: Path, time_limit_s: float) -> Outcome: ...


@dataclass(frozen=True)
class Workbench:
    """Where a search works: the target, what was found out about it, and how children are run."""

    target: str
    facts: dict[str, Any]
    directory: Path
    run: Runner
    trial_limit_s: float = 300.0

    @property
    def space(self) -> Space:
        return Space([Offer.model_validate(offer) for offer in self.facts["offers"]])

    @property
    def inputs(self) -> Path:
        return self.directory / INPUTS

    def artefact(self, number: int) -> Path:
        return self.directory / f"trial-{number}" / "artefact"

    def share_of_limit(self, steps: Sequence[Any], latency_ms: float) -> float:
        """The least time the machine's limits allow, in the dtype the recipe computes in, over the time measured."""
        least = mean_least_time_s(
            _PROFILES.validate_python(self.facts["profiles"]), _LIMITS.validate_python(self.facts["limits"]), steps
        )
        return least * 1e3 / latency_ms


def isolated(memory_limit_bytes: int | None, server: ForkServer | None = None) -> Runner:
    """A runner of real processes under a memory limit: forks of `server`, if there is one, save for the finals'."""

    def run(function: str, arguments: dict[str, Any], directory: Path, time_limit_s: float) -> Outcome:
        room = _ROOMS.get(function, "trial")
        return run_isolated(
            f"whet.tuner.{room}:{function}",
            arguments,
            directory,
            time_limit_s=time_limit_s,
            memory_limit_bytes=memory_limit_bytes,
            environment=QUIET,
            start=server.start if server is not None and room == "trial" else None,
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
    with ForkServer(_PRELOAD, QUIET) as server:
        yield isolated(memory_limit_bytes, server)


def search(
    bench: Workbench,
    study: Study,
    goal: Goal,
    *,
    deadline: float,
    max_trials: int = 200,
    report: Callable[[TrialRecord], None] = lambda record: None,
    clock: Callable[[], float] = time.monotonic,
) -> list[TrialRecord]:
    """Try recipes until `deadline` (as `clock` tells), the plan's end, or `max_trials`. Returns every record.

    A trial that is not expected to end before the deadline is not begun, save the first two: torch.compile alone and
    the most promising technique. KeyboardInterrupt leaves the study as it is, to be resumed.
    """
    space = bench.space
    records = study.records()
    repeats = 0  # of the sampler, in a row
    while len(records) < max_trials:
        expected = _expected_s(records)
        if len(records) >= 2 and clock() + expected > deadline:
            _LOG.info("the time is used up after %d trials", len(records))
            break
        recipe = next_recipe(space, records, goal)
        if recipe is None and (not space.offers or repeats >= _MAX_REPEATS):
            break
        number, chosen = study.begin(recipe, space, space.bound(list(recipe)) if recipe else None)
        if recipe is None and (not chosen.steps or any(r.label == str(chosen) for r in records)):
            study.pass_over(number)
            repeats += 1
            continue
        try:
            time_left = bench.trial_limit_s if len(records) < 2 else deadline - clock()
            record = try_recipe(bench, goal, number, chosen, space, time_left)
        except BaseException:
            study.give_up(number)
            raise
        study.end(record, goal.value(record) if record.status in ("done", "rejected") else None)
        report(record)
        repeats = 0
        records = study.records()
        _drop_losers(bench, goal, records)
    return records


def try_recipe(
    bench: Workbench, goal: Goal, number: int, recipe: Recipe, space: Space, time_left_s: float
) -> TrialRecord:
    """One trial: build, save, load, judge and time a recipe in a fresh process; a failure there is its record."""
    started = time.perf_counter()
    folder = bench.directory / f"trial-{number}"
    record = TrialRecord(
        number=number,
        steps=list(recipe),
        status="failed",
        predicted=space.bound(list(recipe)),
        fingerprint=describe().fingerprint,
    )
    outcome = bench.run(
        "attempt",
        {
            "target": bench.target,
            "steps": [step.model_dump() for step in recipe],
            "signature": bench.facts["signature"],
            "directory": str(bench.artefact(number)),
            "score": bench.facts["score"],
            "max_drop": goal.max_drop,
            "timing_s": _TIMING_S,
            "batch": bench.facts.get("batch"),
        },
        folder,
        min(bench.trial_limit_s, max(time_left_s, 30.0)),
    )
    if outcome.failure is not None:
        record.reason = outcome.failure.message
    elif outcome.value is not None:
        record = TrialRecord.model_validate({**record.model_dump(), **outcome.value})
    if record.latency_ms:
        record.share_of_limit = bench.share_of_limit(record.steps, record.latency_ms)
    if record.status == "done" and goal.needs_memory:
        _measure_memory(bench, goal, record)
    record.seconds = time.perf_counter() - started
    return record


def _measure_memory(bench: Workbench, goal: Goal, record: TrialRecord) -> None:
    folder = bench.directory / f"trial-{record.number}"
    arguments = {
        "target": bench.target,
        "directory": str(bench.artefact(record.number)),
        "inputs": str(bench.inputs),
        "budget_s": _MEMORY_RUN_S,
        "num_threads": bench.facts["num_threads"],
    }
    outcome = bench.run("measure_finalist", arguments, folder / "memory", bench.trial_limit_s)
    if outcome.value is None:
        record.status, record.reason = "failed", outcome.failure.message if outcome.failure else "no result"
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
