"""Tune a target of any kind from end to end: examine, search, compare the finalists, prove, judge, and write."""

import contextlib
import datetime
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from whet.core.recipe import Evidence, Recipe
from whet.core.recipe_file import FILE as RECIPE
from whet.files import write_whole
from whet.measure.host_turn import HostTurn
from whet.measure.machine import versions
from whet.measure.quiet import QuietWait
from whet.tuner.budget import Budget
from whet.tuner.finals import Finals, compare_finalists
from whet.tuner.improvement import best_first
from whet.tuner.kind import Kind, OtherKind, Work
from whet.tuner.listener import Listener
from whet.tuner.opened_study import open_study
from whet.tuner.ray_workers import RayNodes, ray_nodes
from whet.tuner.records import TrialRecord
from whet.tuner.result import FILE, Result
from whet.tuner.time_account import EXAMINATION, FINALS, LOSSES, TRIALS, TimeAccount
from whet.tuner.trials import Trials
from whet.tuner.verdict import decide, pareto


def run(kind: Kind, patience: QuietWait, listener: Listener) -> Result | OtherKind:
    """Find the best recipe for a target, and prove it.

    Returns:
        What was found, which lies in the output directory too; or of which other kind the target is.

    Raises:
        WhetError: Anything the user can mend, before anything is written.
    """
    began = datetime.datetime.now(datetime.UTC)
    kind.check()
    asked, chosen = kind.asked, kind.asked.checked_directory()
    turn = HostTurn(listener.waiting, is_shared=asked.is_shared)
    with contextlib.ExitStack() as stack:
        nodes = stack.enter_context(ray_nodes(asked.workers)) if asked.workers else RayNodes([], [])
        listener.begins()
        with turn.taken():
            patience.begin()  # before a server of forks begins to import: its seconds are measured
        budget = Budget(asked.budget_s, clock=lambda: time.monotonic() - patience.spent_s - turn.waited_s)
        work = Work(budget, TimeAccount(budget.clock), patience, listener)
        stack.enter_context(kind.at_work(work))
        with turn.taken(), work.account.part(EXAMINATION):
            found = kind.examine()
        if isinstance(found, OtherKind):
            return found
        listener.looked(found)
        with turn.taken(), work.account.part(TRIALS):
            kind.measure_original()
        if asked.workers:
            with work.account.part(EXAMINATION):
                nodes.begin(kind, patience)
        directory = chosen or Path(tempfile.mkdtemp(prefix="whet-"))
        study = open_study(kind, directory)
        if study.facts is not None:
            kind.go_on_with(study.facts)
        if asked.storage and kind.shares_finals:
            stack.enter_context(study.shared(directory))
        result = _searched(kind, Trials(kind, study, turn, nodes.workers), directory)
        result.out, result.left_out = str(directory), nodes.left_out
        result.started_at, result.budget_s = began.isoformat(timespec="seconds"), asked.budget_s
        result.command = asked.command(kind.words, kind.facts.exclude, **kind.options) if kind.words else ""
        result.time_s, result.seconds = work.account.seconds, budget.elapsed_s
        with turn.taken():
            _write(kind, result, directory)
        result.seconds = budget.elapsed_s
        if study.members is not None and not result.finals_on:
            study.members.tell(result.model_dump(mode="json", exclude={"trials"}))
    return result


def _searched(kind: Kind, trials: Trials, directory: Path) -> Result:
    """Make the trials, then measure the finals, or take over what another process has measured."""
    account, study = kind.work.account, trials.study
    with account.part(TRIALS):
        stopped = trials.make(kind.begin_search(directory, study.records()))
    with trials.turn.standing_by():
        told = None if study.members is None else study.members.finals(kind.work.listener.waiting)
    records = [*study.records(), *stopped]
    if told is not None:
        return Result.model_validate({**told, "trials": [record.model_dump(mode="json") for record in records]})
    with trials.turn.taken():
        return _judged(kind, records)


def _judged(kind: Kind, records: list[TrialRecord]) -> Result:
    """Compare the best trials with the original, prove what they owe, and decide."""
    with kind.work.account.part(TRIALS):
        finalists = kind.finalists(records)
    finals = _compared(kind, finalists, records)
    if any(kind.improves(point, finals.baseline) and not kind.is_proved(point) for point in finals.points):
        with kind.work.account.part(TRIALS):
            others = kind.instead(records, finalists)
        if others:
            records = [*records, *(record for record in others if record not in records)]
            again = _compared(kind, others, records)
            finals = replace(again, points=[*finals.points, *again.points], num_finalists=len(finalists) + len(others))
    return _concluded(kind, finals, records)


def _compared(kind: Kind, finalists: Sequence[TrialRecord], records: Sequence[TrialRecord]) -> Finals:
    """Compare finalists with the original, and prove what the better ones owe."""
    account, listener = kind.work.account, kind.work.listener
    if finalists and kind.goal.asks_for_speed:
        listener.known(f"{finalists[0].label}: {finalists[0].speedup or 1:.2f}x in the screening, not proved yet")
    with account.part(FINALS):
        finals = compare_finalists(kind, finalists, records)
    with account.part(LOSSES):
        _prove(kind, finals)
    return finals


def _prove(kind: Kind, finals: Finals) -> None:
    """Prove what the points owe that the finals showed to be better, the best first, until one is known to be."""
    for point in best_first(kind.goal, finals.points):
        if not kind.improves(point, finals.baseline):
            continue
        if kind.is_owed(point.steps) and kind.is_unfinished(point):
            if kind.goal.asks_for_speed:
                kind.work.listener.known(f"{point.label}: {point.speedup:.2f}x in the finals, its proof is still owed")
            kind.prove(point, finals.baseline)
        if kind.is_proved(point):
            return


def _concluded(kind: Kind, finals: Finals, records: Sequence[TrialRecord]) -> Result:
    facts, goal, patience = kind.facts, kind.goal, kind.work.patience
    reference = kind.reference(records, finals.points)
    decision = decide(kind, finals, records, reference)
    is_disturbed = decision.is_disturbed or patience.goes_on
    details = kind.details(records, decision.best)
    return Result(
        kind=kind.word,
        unit=facts.unit,
        target=kind.target,
        model=facts.model,
        objective=goal.objective,
        max_drop=goal.max_drop,
        max_memory_bytes=goal.max_memory_bytes,
        verdict=decision.word,
        sentence=decision.sentence,
        needed_s=decision.needed_s,
        busy=patience.sentence if is_disturbed and patience.cause else "",
        quality_name=facts.quality_name,
        higher_is_better=facts.higher_is_better,
        baseline=finals.baseline,
        compile_only=reference,
        best=decision.best,
        finalists=finals.points,
        trials=list(records),
        refused=list(facts.refused),
        hints=list(facts.hints),
        untried=kind.untried(records),
        pareto=pareto(records),
        diagnosis=facts.diagnosis if patience.goes_on or not facts.busy else None,
        machine=facts.machine.facts(),
        fingerprint=facts.fingerprint,
        limits={} if facts.limits is None else asdict(facts.limits),
        versions=versions(),
        **details,
    )


def _write(kind: Kind, result: Result, directory: Path) -> None:
    """Write what the kind keeps, the recipe, the report and, last, the result."""
    if result.finals_on:
        kind.save_told(result, directory)
    else:
        kind.save(result, directory)
    _recipe_of(result).write(directory / RECIPE)
    kind.report(result, directory)
    write_whole(directory / FILE, json.dumps(result.model_dump(mode="json"), indent=1) + "\n")


def _recipe_of(result: Result) -> Recipe:
    best, baseline = result.best, result.baseline
    return Recipe(
        kind="training" if result.kind == "script" else result.kind,
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
        steps=result.recipe.steps,
    )
