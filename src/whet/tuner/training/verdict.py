"""Say what the finals of a training run prove: which point is kept, and why."""

from collections.abc import Sequence

from whet.comparison.claim import Verdict
from whet.figures import num_bytes
from whet.measure.quiet import Patience
from whet.tuner.goal import Goal, ranked
from whet.tuner.records import TrialRecord
from whet.tuner.result import NO_VERDICT, MeasuredVariant
from whet.tuner.training.facts import TrainingFacts
from whet.tuner.training.finals import MIN_ROUNDS, needs_losses
from whet.tuner.training.words import gain_sentence, no_gain_sentence
from whet.tuner.verdict import is_too_large
from whet.tuner.verdict_costs import enough


def is_proved(point: MeasuredVariant) -> bool:
    """Return whether a recipe is known to train as the original does."""
    return not needs_losses(point.steps) or (point.losses is not None and point.losses.is_same is True)


def best_point(goal: Goal, baseline: MeasuredVariant, points: Sequence[MeasuredVariant]) -> MeasuredVariant:
    """Return the best point that the times prove and the memory allows; the original where none is proved."""
    points = [point for point in points if not is_too_large(goal, point)]
    if goal.objective == "memory":
        small = [p for p in points if p.is_smaller and 1 / p.speedup_ci95[0] <= goal.max_slowdown]
        return min(small, key=lambda p: p.peak_bytes, default=baseline)
    proved = [point for point in points if point.verdict == Verdict.PASS]
    return max(proved, key=lambda point: point.speedup, default=baseline)


def conclusion(
    goal: Goal,
    facts: TrainingFacts,
    baseline: MeasuredVariant,
    best: MeasuredVariant,
    points: Sequence[MeasuredVariant],
    records: Sequence[TrialRecord],
    patience: Patience,
    needed_s: float,
) -> tuple[str, str, MeasuredVariant]:
    """Return the verdict in a word and a sentence, and the point that is kept.

    Args:
        goal: What was searched for.
        facts: What is known of the training.
        baseline: The original.
        best: The best point that the times prove; the original where there is none.
        points: The finalists.
        records: The trials.
        patience: How long whet waited for a quiet machine.
        needed_s: The budget that a verdict would have taken, where this one was too small.
    """
    if best is not baseline and needs_losses(best.steps):
        if best.losses is not None and best.losses.is_same:
            return "gain", gain_sentence(goal, facts, baseline, best) + _smaller(goal, best, points), best
        surer = best_point(goal, baseline, [p for p in points if p is not best and is_proved(p)])
        if surer is not baseline:
            why = "" if best.losses is None else f" {best.label} is left out: {best.losses.words}."
            return "gain", gain_sentence(goal, facts, baseline, surer) + why, surer
        if best.losses is not None and best.losses.is_same is False:
            return "no-gain", f"{best.label} is better, but {best.losses.words}. The original stays.", baseline
        told = "no pair of runs fitted into the budget" if best.losses is None else best.losses.words
        would = "" if best.losses is not None and best.losses.doubt else f"; {enough(needed_s)}"
        gain = "" if goal.objective == "memory" else f" ({best.speedup:.2f}x)"
        return "inconclusive", f"{best.label} is better{gain}, but {told}{would}. The original stays.", baseline
    if best is not baseline:
        return "gain", gain_sentence(goal, facts, baseline, best) + _smaller(goal, best, points), best
    if patience.has_run_out:
        return "inconclusive", f"{NO_VERDICT}{patience.sentence}. The original stays.", baseline
    if goal.objective == "memory" and any(len(point.process_latencies_ms) < MIN_ROUNDS for point in points):
        told = f"The budget ended before the finals had enough pairs; {enough(needed_s)}."
        return "inconclusive", told, baseline
    if any(point.verdict == Verdict.INCONCLUSIVE for point in points):
        return (
            "inconclusive",
            f"The times of the finals do not tell. The original stays; {enough(needed_s)}.",
            baseline,
        )
    stopped = next((record for record in records if record.status == "stopped"), None)
    if stopped is not None and not any(record.status != "stopped" for record in records):
        return (
            "inconclusive",
            f"The budget ended within the first trial, {stopped.label}; {enough(needed_s)}.",
            baseline,
        )
    shown = ranked(goal, records)
    if shown and goal.asks_for_speed and not points and (shown[0].speedup or 0) > 1:
        told = f"{shown[0].label} showed {shown[0].speedup:.2f}x in the screening, which proves nothing"
        return "inconclusive", f"{told}: no pair of the finals was made; {enough(needed_s)}.", baseline
    if records and all(record.status == "failed" for record in records):
        return "failed", f"Every trial failed; the first: {records[0].reason}", baseline
    return "no-gain", no_gain_sentence(goal, records) + _too_large(goal, baseline), baseline


def _too_large(goal: Goal, baseline: MeasuredVariant) -> str:
    """Return that the original takes more memory than allowed; "" where it does not."""
    if not is_too_large(goal, baseline) or goal.max_memory_bytes is None:
        return ""
    return (
        f" A step of the original takes {num_bytes(baseline.peak_bytes)}, more than the "
        f"{num_bytes(goal.max_memory_bytes)} allowed; --objective memory looks for a smaller one."
    )


def _smaller(goal: Goal, best: MeasuredVariant, points: Sequence[MeasuredVariant]) -> str:
    """Return why smaller finalists are left out, where memory was asked for; "" where there are none."""
    if goal.objective != "memory":
        return ""
    smaller = [point for point in points if point.is_smaller and point.peak_bytes < best.peak_bytes]
    return "".join(
        f" {point.label} is left out: a step takes {num_bytes(point.peak_bytes)}, but up to "
        f"{1 / point.speedup_ci95[0]:.3g} times the original's time; {goal.max_slowdown:g} is allowed."
        for point in smaller
    )
