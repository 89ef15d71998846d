"""Turn the records of a search into its result: choose the finalists, and report what the finals prove."""

from collections.abc import Callable, Sequence
from dataclasses import asdict

from whet.artefact.runtime import MANIFEST
from whet.machine import versions
from whet.measure.quiet import Patience
from whet.recipe import Recipe
from whet.tuner import final_comparison, plan, verdict
from whet.tuner.budget import Budget
from whet.tuner.build import is_in_process
from whet.tuner.goal import Goal, ranked
from whet.tuner.outlook import MIN_ROUNDS, ROUNDS, Costs, Outlook
from whet.tuner.records import TrialRecord
from whet.tuner.result import MeasuredVariant, Result, Word
from whet.tuner.saving import saved_original
from whet.tuner.search import reloaded, try_recipe
from whet.tuner.trial_context import TrialContext

_BEATEN = 0.9  # a trial whose whole screening interval lies below this speedup is slower in any process


def conclude(
    context: TrialContext,
    goal: Goal,
    records: list[TrialRecord],
    budget: Budget,
    outlook: Outlook,
    report: Callable[[int, int], None],
    patience: Patience,
) -> Result:
    """Measure the best trials against the original in the finals, and return the verdict with all that was found."""
    facts = context.facts
    best_first = ranked(goal, records)
    costs = Costs.estimate(facts, records)
    finalists = _finalists(context, goal, best_first, budget, costs)
    baseline, points = _compared(context, finalists, records, budget, report, patience)
    is_fair = goal.objective != "memory" or hold_only_the_model(context, baseline)
    compile_only = _compile_only(context, records, points)
    best = verdict.choose(goal, baseline, points)
    beaten = best_first[0] if best_first and is_beaten(goal, best_first[0]) else None
    is_short = budget.left_at_most_s < costs.trial_s + costs.finals_s(1, MIN_ROUNDS)
    needed_s = None
    unknown = verdict.inconclusive(baseline, points, patience, len(finalists))
    word, sentence = _verdict(goal, baseline, best, points, records, beaten, unknown, facts.no_graph)
    if word == "gain":
        sentence = verdict.gain(goal, baseline, best, compile_only, facts.quality_name, is_fair=is_fair)
    elif word == "no-gain" and is_short and verdict.is_open(goal, context.space, records, points, beaten):
        word, needed_s = "inconclusive", costs.needed_s(outlook.spent_s)
        sentence = verdict.out_of_time(records, next(iter(best_first), None), needed_s)
    elif word == "no-gain" and best_first and beaten is None and not points:
        word, sentence = "inconclusive", verdict.unmeasured(best_first[0])
    is_disturbed = (word == "inconclusive" and needed_s is None) or patience.goes_on
    return Result(
        target=facts.name,
        model=facts.model,
        objective=goal.objective,
        max_drop=goal.max_drop,
        max_memory_bytes=goal.max_memory_bytes,
        verdict=word,
        needed_s=needed_s,
        sentence=sentence,
        busy=patience.sentence if is_disturbed and patience.cause else "",
        quality_name=facts.quality_name,
        higher_is_better=facts.higher_is_better,
        baseline=baseline,
        compile_only=compile_only,
        best=best,
        finalists=points,
        trials=records,
        refused=list(facts.refused),
        hints=list(facts.hints),
        untried=verdict.untried(goal, context.space, records),
        pareto=verdict.pareto(records),
        diagnosis=facts.diagnosis if patience.goes_on or not facts.busy else None,
        machine=facts.machine.facts(),
        fingerprint=facts.fingerprint,
        limits=asdict(facts.limits),
        versions=versions(),
    )


def _compared(
    context: TrialContext,
    finalists: list[TrialRecord],
    records: list[TrialRecord],
    budget: Budget,
    report: Callable[[int, int], None],
    patience: Patience,
) -> tuple[MeasuredVariant, list[MeasuredVariant]]:
    """Measure the finalists and the original in the final comparison, within what is left of the budget."""
    now = budget.clock()
    return final_comparison.compare_finalists(
        context,
        finalists,
        deadline=now + budget.left_s,
        stop_at=now + budget.left_at_most_s,
        unmeasured=verdict.screened_original(context.facts, records),
        patience=patience,
        report=report,
        clock=budget.clock,
    )


def _verdict(
    goal: Goal,
    baseline: MeasuredVariant,
    best: MeasuredVariant,
    points: list[MeasuredVariant],
    records: list[TrialRecord],
    beaten: TrialRecord | None,
    unknown: str,
    no_graph: str,
) -> tuple[Word, str]:
    """Return the verdict in a word and, where it is no gain, in a sentence.

    Args:
        goal: What the search was to reach.
        baseline: The original in the finals.
        best: The best proved point; the original where none is proved.
        points: The finalists in the finals.
        records: Every trial.
        beaten: The best trial, where it was too slow for the finals.
        unknown: Why there is no verdict; "" where there is one.
        no_graph: Why the model cannot be exported as a graph; "" where it can.
    """
    if best is not baseline:
        return "gain", ""
    if unknown:
        return "inconclusive", unknown
    word: Word = "failed" if verdict.all_failed(records) else "no-gain"
    return word, verdict.no_gain(goal, baseline, records, points, beaten, no_graph)


def _compile_only(
    context: TrialContext, records: Sequence[TrialRecord], points: Sequence[MeasuredVariant]
) -> MeasuredVariant | None:
    """Return torch.compile alone as measured in the finals, or else in its trial; None where it was never measured."""
    reference = plan.compile_only(context.space)
    if reference is None:
        return None
    measured = next((point for point in points if point.steps == reference.key), None)
    screened = next((record for record in records if record.key == reference.key), None)
    return measured or (verdict.point_of(screened, context.facts.num_samples) if screened else None)


def _finalists(
    context: TrialContext, goal: Goal, best_first: list[TrialRecord], budget: Budget, costs: Costs
) -> list[TrialRecord]:
    """Return the trials for the finals: the best two, one where time is short, or none where not even one fits.

    A fresh process has loaded and run the artefact of each. An artefact that is no longer on disk is made again. Trials
    that are far slower than the original are left out, since nobody needs proof of that.
    """
    chosen: list[TrialRecord] = []
    for record in [r for r in best_first if not is_beaten(goal, r)][:3]:
        if len(chosen) == 2:
            break
        is_built = is_in_process(record.steps) or (context.artefact(record.number) / MANIFEST).is_file()
        build_s = 0.0 if is_built else costs.trial_s
        if costs.finals_s(1, MIN_ROUNDS) + build_s > budget.left_at_most_s:
            break
        if chosen and costs.finals_s(2, ROUNDS) + build_s > budget.left_s:
            break
        if not is_built:
            left_s = budget.left_at_most_s - costs.finals_s(1, MIN_ROUNDS)
            again = try_recipe(context, goal, record.number, Recipe(steps=record.steps), context.space, left_s)
            if again.status != "done":
                continue
        if reloaded(context, record).status != "done":
            continue
        chosen.append(record)
    return chosen


def is_beaten(goal: Goal, record: TrialRecord) -> bool:
    """Return whether a trial is so much slower than the original that the finals need not prove it."""
    return goal.asks_for_speed and record.speedup_ci95 is not None and record.speedup_ci95[1] < _BEATEN


def hold_only_the_model(context: TrialContext, baseline: MeasuredVariant) -> bool:
    """Lower the original's peak memory to that of a process that loads it from an artefact, if that is less.

    The original's own process may also hold what its code builds beside the model, such as the data of a quality. No
    variant's process does.

    Returns:
        Whether the original could be saved and measured in that way.
    """
    saved = saved_original(context)
    peak_bytes = (
        None if saved.directory is None else final_comparison.peak_bytes_of(context, saved.directory, saved.libraries)
    )
    baseline.peak_bytes = min(baseline.peak_bytes, peak_bytes or baseline.peak_bytes)
    return peak_bytes is not None
