"""Tuning from end to end: look at the target, search, finals, verdict, and everything written where it belongs."""

import contextlib
import datetime
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import cloudpickle
import torch
from torch import nn

from whet.artefact.runtime import MANIFEST
from whet.errors import ModelError, OptionError, TargetError
from whet.files import replace_directory, write_whole
from whet.machine import describe, versions
from whet.measure.isolate import FailureKind, Outcome
from whet.recipe import FILE as RECIPE
from whet.recipe import Evidence, Recipe
from whet.signature import Batch
from whet.techniques import TABLE
from whet.tuner import finals, plan, verdict
from whet.tuner.command import command_line, without_password
from whet.tuner.finalist import PICKLED, SURROUNDINGS
from whet.tuner.goal import Goal, ranked
from whet.tuner.opening import checked_directory, move_in, open_study
from whet.tuner.report import write_report
from whet.tuner.result import FILE, MODEL, Objective, Point, Result, TrialRecord, Word
from whet.tuner.search import Workbench, forking, search, try_recipe
from whet.workload import Quality, Workload

_LOOK_LIMIT_S = 180.0
_FINALS_SHARE = 0.4  # of the budget is left for the finals, at most
_BEATEN = 0.9  # a trial whose whole screening interval lies below this speedup is slower, whatever the process


class Listener:
    """Told how tuning goes on. Each method does nothing here; a command line shows progress by overriding them."""

    def looked(self, facts: dict[str, Any]) -> None:
        """The target has been examined."""

    def tried(self, record: TrialRecord) -> None:
        """A trial has ended."""

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
    listener: Listener | None = None,
) -> Result:
    """Find the fastest recipe for a model on this machine, and prove it.

    target: a built-in workload's name, "hf:DIR", "FILE.py:FUNCTION", "package.module:FUNCTION", a Workload, or a
    module, with `inputs`: one batch (a tensor, a tuple, a dict) or a list of batches.
    max_drop: how much of the quality may go, as a fraction of the original's; without a quality, how far the outputs
    may lie from the original's (result.Agreement.distance). max_memory_bytes: of peak resident memory, the whole
    process. budget_s: for search and finals. out: a new directory for recipe, report, result and model; a temporary
    one for a model in memory. storage: an Optuna URL, for several machines of one kind to share a search.
    resume: go on with the search that `out` (or `storage`) holds. exclude: techniques not to be tried. trial_limit_s,
    memory_limit_bytes: of each trial; nearly all of the machine's memory, if not given.

    Raises a WhetError for anything the user can mend, before anything is written.
    """
    goal = Goal.checked(objective, max_drop, max_memory_bytes, budget_s)
    _check_excluded(exclude)
    chosen = checked_directory(out, resume, has_own_study=not storage)
    listener = listener or Listener()
    started, began = time.monotonic(), datetime.datetime.now(datetime.UTC)
    deadline = started + budget_s
    with (
        _prepared(target, inputs, quality, calibration) as (address, name, scratch),
        forking(memory_limit_bytes or describe().most_bytes) as run,
    ):
        arguments = {"target": address, "directory": str(scratch), "exclude": list(exclude)}
        facts = _looked(run("look", arguments, scratch, _LOOK_LIMIT_S))
        listener.looked(facts)
        directory = chosen or Path(tempfile.mkdtemp(prefix="whet-"))
        study = open_study(storage, directory, name, goal, facts, resume, exclude)
        work = move_in(scratch, directory)
        bench = Workbench(address, {**facts, **(study.facts or {})}, work, run, trial_limit_s)
        reserve = min(_FINALS_SHARE * budget_s, finals.expected_s(bench, num_contenders=2))
        records = search(bench, study, goal, deadline=deadline - reserve, report=listener.tried)
        result = _conclude(bench, goal, records, deadline, listener)
        result.target, result.budget_s, result.out = name, budget_s, str(directory)
        result.started_at, result.seconds = began.isoformat(timespec="seconds"), time.monotonic() - started
        result.command = _command(target, goal, budget_s, storage, bench.facts["exclude"])
        _write(bench, result, directory)
        shutil.rmtree(work, ignore_errors=True)
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


def _looked(outcome: Outcome) -> dict[str, Any]:
    """The facts a child found out about the target. Raises the user error it met."""
    if outcome.failure is not None:
        if outcome.failure.kind is FailureKind.TIMEOUT:
            raise ModelError(f"to build and call the model {outcome.failure.message}; does it wait for something?")
        raise outcome.failure.as_error()
    assert outcome.value is not None
    return outcome.value


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
    """(how children name the target, how people do, a scratch directory for the first look)."""
    if isinstance(target, str) and inputs is not None:
        raise TargetError("inputs go with a model in memory; a named target brings its own")
    with tempfile.TemporaryDirectory(prefix="whet-look-") as scratch:
        if isinstance(target, str):
            yield target, target, Path(scratch)
            return
        workload = target if isinstance(target, Workload) else _workload(target, inputs, quality, calibration)
        path = Path(scratch) / "workload.pkl"
        _hand_over(workload, path)
        yield f"{PICKLED}{path}", workload.name, Path(scratch)


def _workload(
    model: nn.Module, inputs: Batch | Sequence[Batch] | None, quality: Quality | None, calibration: Sequence[Batch]
) -> Workload:
    if not isinstance(model, nn.Module):
        raise TargetError(f"tune takes a target's name, a Workload or a torch.nn.Module, not {type(model).__name__}")
    if inputs is None:
        raise TargetError("a model in memory needs inputs: one batch, or a list of batches")
    batches: Sequence[Batch] = inputs if isinstance(inputs, list) else [inputs]
    name = type(model).__name__
    return Workload(model=model.eval(), inputs=batches, quality=quality, calibration=tuple(calibration), name=name)


def _hand_over(workload: Workload, path: Path) -> None:
    """Pickle a workload, code and all. Batches that were split from one tensor share its memory, which cloudpickle by
    itself would write once for each of them; torch.save writes it once. With it goes where Python finds modules here,
    as what the script was started beside is pickled by name alone, and how many threads PyTorch uses."""
    surroundings = {
        "sys_path": [str(Path(place).absolute()) for place in sys.path],  # "" is the working directory
        "num_threads": torch.get_num_threads(),
    }
    (path.parent / SURROUNDINGS).write_text(json.dumps(surroundings), encoding="utf-8")
    try:
        torch.save(workload, path, pickle_module=cloudpickle)
    except Exception as error:  # cloudpickle raises whatever the user's objects do
        raise TargetError(
            f"the model cannot be handed to another process ({type(error).__name__}: {error}); "
            "write a function that builds it, and tune FILE.py:FUNCTION"
        ) from error


def _conclude(bench: Workbench, goal: Goal, records: list[TrialRecord], deadline: float, listener: Listener) -> Result:
    facts = bench.facts
    best_first = ranked(goal, records)
    contenders = _contenders(bench, goal, best_first, deadline)
    baseline, points = finals.run_finals(bench, contenders, deadline=deadline, report=listener.measured)
    is_fair = goal.objective != "memory" or _hold_only_the_model(bench, baseline)
    reference = plan.compile_only(bench.space)
    compile_only = next((p for p in points if reference and p.label == str(reference)), None)
    if compile_only is None and reference is not None:
        screened = next((r for r in records if r.label == str(reference)), None)
        compile_only = verdict.point_of(screened, facts["num_samples"]) if screened else None
    best = verdict.choose(goal, baseline, points)
    beaten = best_first[0] if best_first and _is_beaten(goal, best_first[0]) else None
    word: Word = "gain" if best is not baseline else "failed" if verdict.all_failed(records) else "no-gain"
    return Result(
        target=facts["name"],
        objective=goal.objective,
        max_drop=goal.max_drop,
        max_memory_bytes=goal.max_memory_bytes,
        verdict=word,
        sentence=verdict.no_gain(goal, baseline, records, points, beaten, facts.get("no_graph", ""))
        if best is baseline
        else verdict.gain(goal, baseline, best, compile_only, facts["quality_name"], is_fair=is_fair),
        quality_name=facts["quality_name"],
        higher_is_better=facts["higher_is_better"],
        baseline=baseline,
        compile_only=compile_only,
        best=best,
        finalists=points,
        trials=records,
        refused=facts["refused"],
        untried=verdict.untried(goal, bench.space, records),
        pareto=verdict.pareto(records),
        diagnosis=facts["diagnosis"],
        machine=facts["machine"],
        fingerprint=facts["fingerprint"],
        limits=facts["limits"],
        versions=versions(),
    )


def _contenders(bench: Workbench, goal: Goal, best_first: list[TrialRecord], deadline: float) -> list[TrialRecord]:
    """The best two, or one where time is short; each with its artefact on disk, made again where it is not. None of
    those that are far slower than the original: nobody waits for proof of that."""
    time_left = deadline - time.monotonic()
    num = 2 if time_left > finals.expected_s(bench, num_contenders=2) else 1
    chosen = []
    for record in [r for r in best_first if not _is_beaten(goal, r)][:num]:
        if not (bench.artefact(record.number) / MANIFEST).is_file():
            again = try_recipe(bench, goal, record.number, Recipe(steps=record.steps), bench.space, time_left)
            if again.status != "done":
                continue
        chosen.append(record)
    return chosen


def _is_beaten(goal: Goal, record: TrialRecord) -> bool:
    return goal.asks_for_speed and record.speedup_ci95 is not None and record.speedup_ci95[1] < _BEATEN


def _write(bench: Workbench, result: Result, directory: Path) -> None:
    """Model, recipe, report and result; the result last."""
    if result.verdict == "gain":
        assert result.best.number is not None
        replace_directory(bench.artefact(result.best.number), directory / MODEL)
    elif (saved := _saved_original(bench)) is not None:
        replace_directory(saved, directory / MODEL)
    recipe_of(result).write(directory / RECIPE)
    write_report(result, directory / "report.html")
    write_whole(directory / FILE, json.dumps(result.model_dump(mode="json"), indent=1) + "\n")


def _saved_original(bench: Workbench) -> Path | None:
    """The original as an artefact, so that what was tuned can be loaded whatever the verdict. A model that
    torch.export cannot trace has none."""
    artefact = bench.directory / "original" / "artefact"
    if not (artefact / MANIFEST).is_file():
        arguments = {"target": bench.target, "signature": bench.facts["signature"], "directory": str(artefact)}
        if bench.run("save_original", arguments, artefact.parent, bench.trial_limit_s).failure is not None:
            return None
    return artefact


def _hold_only_the_model(bench: Workbench, baseline: Point) -> bool:
    """Take from the original's peak memory what its own code builds beside the model, as the data of a quality: no
    variant's process builds that. Whether it could be done."""
    saved = _saved_original(bench)
    peak_bytes = finals.peak_bytes_of(bench, saved) if saved is not None else None
    baseline.peak_bytes = min(baseline.peak_bytes, peak_bytes or baseline.peak_bytes)
    return peak_bytes is not None


def recipe_of(result: Result) -> Recipe:
    """The winning recipe with its evidence."""
    best, baseline = result.best, result.baseline
    return Recipe(
        target=result.target,
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
