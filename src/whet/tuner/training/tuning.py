"""Tune a training run from end to end: examine, search, compare, prove the held-out loss, write what was found."""

import datetime
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from whet.comparison.claim import Verdict
from whet.comparison.compare import TimeLimit
from whet.comparison.run import Run
from whet.errors import ModelError, OptionError
from whet.figures import num_bytes
from whet.files import write_whole
from whet.machine.library_versions import versions
from whet.measure.isolate import FailureKind
from whet.measure.quiet import Patience
from whet.measure.stats import noise_floor
from whet.recipe import FILE as RECIPE
from whet.training.loss_proof import LEAST, MOST, TRAINING_LOSS
from whet.training.technique import Exactness
from whet.tuner.budget import Budget, BudgetEnded, Runner, needed_for
from whet.tuner.goal import Goal, ranked
from whet.tuner.listener import Listener
from whet.tuner.processes import TrainingProcesses
from whet.tuner.proven_recipe import recipe_of
from whet.tuner.records import TrialRecord
from whet.tuner.result import FILE, LargerBatch, MeasuredVariant, Result
from whet.tuner.search import SearchTime, search_space
from whet.tuner.study import Study, default_storage
from whet.tuner.time_account import BATCHES, EXAMINATION, FINALS, LOSSES, TRIALS, TimeAccount
from whet.tuner.training.batch_sizes import try_batches
from whet.tuner.training.context import Neighbours, TrainingContext, record_of
from whet.tuner.training.examination import TrainingRequest, examine_training
from whet.tuner.training.facts import TrainingFacts
from whet.tuner.training.finals import (
    LEAST_STEPS,
    MIN_ROUNDS,
    MOST_STEPS,
    compare_finalists,
    needs_losses,
    prove_losses,
)
from whet.tuner.training.points import measured_point, screened_point
from whet.tuner.training.report import write_training_report
from whet.tuner.training.soundness import out_of_memory
from whet.tuner.training.trial import TrainingMeasured, exactness_of
from whet.tuner.training.verdict import best_point, conclusion, is_proved
from whet.tuner.verdict import untried
from whet.tuner.verdict_costs import enough

_EXAMINATION_LIMIT_S = 600.0
_LOSSES_SHARE = 0.25  # of the budget
_SET_UP_AGAIN = 0.3  # of a recipe's set-up, in each process of the finals: what was compiled lies on disk
_BATCHES_SHARE = 0.3  # of the budget, where larger batches are measured too
_TRIAL_OVER_ORIGINAL = 1.5  # a trial also times the original anew


@dataclass(frozen=True)
class TrainingPlan:
    """Hold what a search for training is asked for.

    Attributes:
        goal: What it is to reach.
        budget_s: Seconds for everything.
        directory: The directory for the results.
        storage: The study's URL; "" for a file in the directory.
        resume: Whether to go on with an earlier search.
        exclude: Techniques that are not tried.
        trial_limit_s: Seconds after which a trial is ended.
    """

    goal: Goal
    budget_s: float
    directory: Path
    storage: str = ""
    resume: bool = False
    exclude: tuple[str, ...] = ()
    trial_limit_s: float = 300.0


def tune_training(
    address: str,
    name: str,
    plan: TrainingPlan,
    processes: TrainingProcesses,
    patience: Patience,
    listener: Listener,
    command: str = "",
) -> Result:
    """Find the fastest or smallest recipe for a training run, and prove it.

    Args:
        address: How child processes name the target.
        name: How people name it.
        plan: What is asked for.
        processes: The processes of the search.
        patience: How long to wait for a quiet machine.
        listener: Is told of the progress.
        command: The command line of this search.

    Raises:
        WhetError: Anything the user can mend, before anything is written.
    """
    began = datetime.datetime.now(datetime.UTC)
    whole = Budget(plan.budget_s, clock=lambda: time.monotonic() - patience.spent_s)
    kept_share = _BATCHES_SHARE if plan.goal.allow_batch else 0.0
    budget = Budget((1 - kept_share) * plan.budget_s, clock=whole.clock)
    bounded, account = whole.bounded(processes.run), TimeAccount(whole.clock)
    with tempfile.TemporaryDirectory(prefix="whet-train-") as scratch:
        with account.part(EXAMINATION):
            facts = _examined(bounded, address, plan, Path(scratch), are_forks=processes.are_forks)
        listener.looked_at_training(facts)
        _check_memory(plan.goal, facts)
        context = TrainingContext(address, facts, Path(scratch), bounded, processes.renew, plan.trial_limit_s)
        processes.renew()  # data in an order of hashes is another one now, and the original is no longer the same
        asked_s = budget.elapsed_s
        with account.part(TRIALS):
            original = patience.measure(
                lambda: context.original(budget.left_at_most_s), lambda found: found.outcome.busy
            )
        trial_s = _TRIAL_OVER_ORIGINAL * (budget.elapsed_s - asked_s)
        if original.outcome.status != "done" or original.run is None:
            raise ModelError(f"the original cannot be measured: {original.outcome.reason}")
        plan.directory.mkdir(parents=True, exist_ok=True)
        title = f"whet training {name} {plan.goal.objective} {facts.model} {facts.loop} {facts.fingerprint}"
        study = Study.open(plan.storage or default_storage(plan.directory), title, must_exist=plan.resume)
        context = replace(context, most_loss=original.most_loss, num_known=original.num_steps)
        originals = Neighbours(context, original.run)
        with account.part(TRIALS):
            records = _searched(context, study, plan.goal, budget, originals, trial_s, listener, patience)
        result = _concluded(context, plan.goal, budget, original, records, listener, patience, account)
        if plan.goal.allow_batch:
            with account.part(BATCHES):
                result.larger_batches = _larger_batches(context, plan.goal, result.best, whole, patience)
        result.time_s = account.seconds
    result.target, result.out, result.started_at = name, str(plan.directory), began.isoformat(timespec="seconds")
    result.budget_s, result.seconds, result.command = plan.budget_s, budget.elapsed_s, command
    _write(result, plan.directory)
    return result


def _examined(run: Runner, address: str, plan: TrainingPlan, scratch: Path, *, are_forks: bool) -> TrainingFacts:
    request = TrainingRequest(target=address, directory=scratch, exclude=plan.exclude, budget_s=plan.budget_s)
    outcome = run(examine_training, request, scratch / "examination", _EXAMINATION_LIMIT_S)
    if isinstance(outcome.failure, BudgetEnded):
        raise OptionError(
            f"to build and examine the training takes longer than a budget of {plan.budget_s:g} s; give a larger "
            "--budget"
        )
    if outcome.failure is not None:
        if outcome.failure.kind is FailureKind.TIMEOUT:
            raise ModelError(f"to build and examine the training {outcome.failure.message}")
        if outcome.failure.kind is FailureKind.MEMORY:
            raise out_of_memory(scratch, outcome.failure)
        raise outcome.failure.as_error()
    facts = outcome.answer(TrainingFacts)
    assert facts is not None
    start_s = max(0.0, outcome.seconds - facts.examined_s - facts.limits_s)
    # The seconds of each process that is no fork hold its start.
    return facts.model_copy(update={"start_s": start_s if are_forks else 0.0})


def _check_memory(goal: Goal, facts: TrainingFacts) -> None:
    """Check that the parameters alone fit into the allowed memory.

    Raises:
        OptionError: They do not. Techniques that round can halve them at best.
    """
    least = facts.memory.parameter_bytes // 2
    if goal.max_memory_bytes is not None and goal.max_memory_bytes < least:
        raise OptionError(
            f"no step fits into {num_bytes(goal.max_memory_bytes)}: the parameters take {num_bytes(2 * least)}, in "
            "bfloat16 half of it; give more --max-memory"
        )


def _searched(
    context: TrainingContext,
    study: Study,
    goal: Goal,
    budget: Budget,
    originals: Neighbours,
    trial_s: float,
    listener: Listener,
    patience: Patience,
) -> list[TrialRecord]:
    """Try recipes for what is not kept for the proof of the best one; the first may take `trial_s` seconds."""
    facts = context.facts

    def kept_s(records: Sequence[TrialRecord]) -> float:
        chosen = _finalists(goal, records)
        losses_s = _LOSSES_SHARE * budget.seconds if any(needs_losses(record.steps) for record in chosen) else 0.0
        return _finals_s(chosen, facts.start_s, originals.process_s) + losses_s

    now = budget.clock()
    limit = SearchTime(now + budget.left_s, now + budget.left_at_most_s, trial_s, budget.clock, kept_s=kept_s)
    return search_space(
        context.worth_trying(goal),
        study,
        goal,
        limit,
        lambda number, recipe, left_s: record_of(context, goal, originals, number, recipe, left_s),
        patience=patience,
        report=listener.tried,
    )


def _finals_s(finalists: Sequence[TrialRecord], start_s: float, process_s: float) -> float:
    """Return the seconds of the shortest finals.

    Args:
        finalists: What is compared; as long as there is none, a recipe that is set up at once.
        start_s: Seconds in which a server of forks starts, one for each pair.
        process_s: Seconds of a process of the original.
    """
    set_up_s = sum(record.training.set_up_s or 0.0 for record in finalists if record.training is not None)
    return MIN_ROUNDS * (max(1, len(finalists)) * (start_s + 2 * process_s) + _SET_UP_AGAIN * set_up_s)


def _concluded(
    context: TrainingContext,
    goal: Goal,
    budget: Budget,
    original: TrainingMeasured,
    records: list[TrialRecord],
    listener: Listener,
    patience: Patience,
    account: TimeAccount,
) -> Result:
    """Compare the best recipe with the original, prove its loss, and say what was found."""
    facts = context.facts
    finalists = _finalists(goal, records)
    now = budget.clock()
    losses_s = _LOSSES_SHARE * budget.seconds if any(needs_losses(r.steps) for r in finalists) else 0.0
    limit = TimeLimit(now + budget.left_s - losses_s, now + budget.left_at_most_s - losses_s, budget.clock)
    if finalists and goal.asks_for_speed:
        listener.known(f"{finalists[0].label}: {finalists[0].speedup:.2f}x in the screening, not proved yet")
    with account.part(FINALS):
        found, claims = compare_finalists(context, finalists, limit, patience, listener.measured)
    runs = [run for run in found.runs.get("original", ()) if run.counts] or [original.run or Run()]
    baseline = _original_point(facts, original, runs)
    judged = [(record, claim) for record, claim in zip(finalists, claims, strict=True) if claim.num_pairs]
    points = [measured_point(record, claim, facts.num_samples) for record, claim in judged]
    best = best_point(goal, baseline, points)
    for point in sorted((p for p in points if p is best or p.verdict == Verdict.PASS), key=lambda p: p is not best):
        if needs_losses(point.steps) and not is_proved(best):
            listener.known(f"{point.label}: {point.speedup:.2f}x in the finals, its loss is not proved yet")
            with account.part(LOSSES):
                _prove(context, goal, baseline, point, budget, listener)
    needed_s = _needed_s(account, budget, records, points)
    word, sentence, kept = conclusion(goal, facts, baseline, best, points, records, patience, needed_s)
    failed = next((claim.failure for claim in claims if claim.failure), "")
    own = next((run.failure for run in found.runs.get("original", ()) if run.failure), "")
    if not points and (failed or own):
        told = [f"{finalists[0].label}: {failed}"] if failed else []
        told += [f"the original: {own}"] if own else []
        word, sentence = "inconclusive", f"The finals failed ({'; '.join(told)}). The original stays."
    compile_only = next((r for r in records if [s.technique for s in r.steps] == ["compile"] and r.speedup), None)
    return Result(
        kind="training",
        unit=facts.unit,
        target=facts.name,
        model=facts.model,
        objective=goal.objective,
        max_drop=goal.max_drop,
        max_memory_bytes=goal.max_memory_bytes,
        verdict=word,  # type: ignore[arg-type]
        sentence=sentence,
        needed_s=needed_s if enough(needed_s) in sentence else None,
        busy=patience.sentence if word == "inconclusive" and patience.cause else "",
        quality_name=facts.evaluation or TRAINING_LOSS,
        higher_is_better=facts.higher_is_better,
        baseline=baseline,
        compile_only=None if compile_only is None else screened_point(compile_only, facts.num_samples),
        best=kept,
        finalists=points,
        trials=records,
        refused=list(facts.refused),
        untried=untried(goal, context.space, records),
        diagnosis=facts.diagnosis,
        profile=facts.profile,
        machine=facts.machine.facts(),
        fingerprint=facts.fingerprint,
        limits=asdict(facts.limits),
        versions=versions(),
        unsaved="a training recipe changes the loop: apply it with whet.prepare(model, optimizer, loader, recipe=...)",
    )


def _needed_s(
    account: TimeAccount, budget: Budget, records: Sequence[TrialRecord], points: Sequence[MeasuredVariant]
) -> float:
    """Return about the budget in which a verdict fits, by what each part took: more than this one."""
    before_s = account.seconds.get(EXAMINATION, 0.0) + account.seconds.get(TRIALS, 0.0)
    trial_s = sum(record.seconds for record in records) / max(1, len(records))
    num_pairs = max((len(point.process_latencies_ms) for point in points), default=0)
    finals_s = account.seconds.get(FINALS, 0.0) / num_pairs * MIN_ROUNDS if num_pairs else 2 * MIN_ROUNDS * trial_s
    num_losses = sum(len(point.losses.pairs) for point in points if point.losses is not None)
    losses_s = account.seconds.get(LOSSES, 0.0) / num_losses * MOST if num_losses else LEAST * trial_s
    return needed_for(max(before_s + finals_s + losses_s, budget.seconds + 1))


def _prove(
    context: TrainingContext,
    goal: Goal,
    baseline: MeasuredVariant,
    point: MeasuredVariant,
    budget: Budget,
    listener: Listener,
) -> None:
    """Train pairs of runs for a recipe that rounds, and note what they prove."""
    point.losses = prove_losses(
        context,
        point.steps,
        _num_steps(context.facts, point, budget),
        allowed=goal.max_drop,
        left_s=lambda: budget.left_at_most_s,
        report=listener.proved,
    )
    sound = [pair for pair in point.losses.pairs if not pair.old_fault] if point.losses is not None else []
    if sound:
        point.quality = sum(pair.new for pair in sound) / len(sound)
        baseline.quality = sum(pair.old for pair in sound) / len(sound)


def _larger_batches(
    context: TrainingContext, goal: Goal, kept: MeasuredVariant, budget: Budget, patience: Patience
) -> list[LargerBatch]:
    """Measure larger batches in what is left of the budget."""
    return try_batches(
        context,
        kept.steps,
        _num_steps(context.facts, kept, budget),
        allowed=goal.max_drop,
        clock=budget.clock,
        left_s=budget.left_s,
        patience=patience,
    )


def _finalists(goal: Goal, records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the best trial, and the best one that promises more: if the first reaches another loss, it stays."""
    best = ranked(goal, records)
    chosen = best[:1]
    order = list(Exactness)
    if chosen:
        first = order.index(exactness_of(chosen[0].steps))
        surer = (record for record in best if order.index(exactness_of(record.steps)) < first)
        chosen += [record for record in [next(surer, None)] if record is not None]
    if not goal.asks_for_speed:
        return chosen
    return [record for record in chosen if (record.speedup or 0) > 1]


def _num_steps(facts: TrainingFacts, point: MeasuredVariant, budget: Budget) -> int:
    """Return how many steps each run for the held-out loss makes, so that the least pairs fit into what is left."""
    pair_s = max(5.0, budget.left_at_most_s / 4)
    step_s = facts.profile.total_s + point.latency_ms / 1e3
    return max(LEAST_STEPS, min(MOST_STEPS, int((pair_s - 2 * facts.open_s - 8) / step_s)))


def _original_point(facts: TrainingFacts, original: TrainingMeasured, runs: Sequence[Run]) -> MeasuredVariant:
    seconds = sorted(run.seconds for run in runs)[len(runs) // 2]
    evidence = original.outcome.training
    return MeasuredVariant(
        latency_ms=seconds * 1e3,
        throughput_per_s=facts.num_samples / seconds,
        peak_bytes=sorted(run.peak_bytes for run in runs)[len(runs) // 2],
        size_bytes=0,
        process_latencies_ms=[run.seconds * 1e3 for run in runs],
        noise=noise_floor([[run.seconds for run in runs]]) if len(runs) > 1 else 1.0,
        training=evidence,
    )


def _write(result: Result, directory: Path) -> None:
    """Write the recipe, the report and, last, the result."""
    recipe_of(result).write(directory / RECIPE)
    write_training_report(result, directory / "report.html")
    write_whole(directory / FILE, json.dumps(result.model_dump(mode="json"), indent=1) + "\n")
