"""Derive the verdict from measured points: gain or no gain, in a sentence, and which trials are Pareto-optimal."""

import statistics
from collections.abc import Sequence

from whet.measure.quiet import Patience
from whet.measure.stats import MAX_NOISE
from whet.tuner import figures
from whet.tuner.build import is_in_process
from whet.tuner.facts import TargetFacts
from whet.tuner.final_comparison import is_gain
from whet.tuner.goal import Goal, ranked
from whet.tuner.headline import CANNOT_BE_SAVED, UNFAIR_MEMORY
from whet.tuner.in_process import ADVICE
from whet.tuner.outlook import MIN_ROUNDS
from whet.tuner.records import TrialRecord
from whet.tuner.result import NO_VERDICT, MeasuredVariant, UntriedTechnique
from whet.tuner.space import Space

TIME_UP = "the time was up before its turn"
STOPPED = "its trial was stopped, as the budget was used up"

_SIZE_MARGIN = 0.99  # a variant that is smaller by less than a percent is not called smaller


def choose(goal: Goal, baseline: MeasuredVariant, points: Sequence[MeasuredVariant]) -> MeasuredVariant:
    """Return the best point that is proved better than the original, or the original where none is."""
    proved = [p for p in points if improves(goal, baseline, p)]
    if goal.asks_for_speed:
        return max(proved, key=lambda p: p.speedup, default=baseline)
    if goal.objective == "memory":
        return min(proved, key=lambda p: p.peak_bytes, default=baseline)
    return min(proved, key=lambda p: (p.size_bytes, -p.speedup), default=baseline)


def improves(goal: Goal, baseline: MeasuredVariant, point: MeasuredVariant) -> bool:
    """Return whether a point is proved better than the original in the objective, within the memory allowed."""
    return not is_too_large(goal, point) and _is_better(goal, baseline, point)


def _is_better(goal: Goal, baseline: MeasuredVariant, point: MeasuredVariant) -> bool:
    """Return whether a point is better than the original in the objective, whatever memory it takes."""
    if goal.asks_for_speed:
        return is_gain(point)
    if goal.objective == "memory":
        return point.peak_bytes < _SIZE_MARGIN * baseline.peak_bytes
    return point.size_bytes < _SIZE_MARGIN * baseline.size_bytes


def noise_in_words(baseline: MeasuredVariant) -> str:
    """Return the gain that as many pairs of the original with itself could show by chance, in words."""
    return f"{baseline.noise - 1:.1%}" if baseline.noise > 1 else "unknown: too few runs"


def all_failed(records: Sequence[TrialRecord]) -> bool:
    """Return whether nothing that was tried could be built and run, so that there is nothing to judge."""
    return bool(records) and all(r.status in ("failed", "refused") for r in records)


def inconclusive(
    baseline: MeasuredVariant, points: Sequence[MeasuredVariant], patience: Patience, num_finalists: int = 0
) -> str:
    """Return why there is no verdict, in one sentence; "" where a verdict can be given.

    Args:
        baseline: The original in the finals.
        points: The finalists in the finals.
        patience: How long whet waited for a quiet machine, and what disturbed it.
        num_finalists: How many finalists were to be measured.
    """
    if patience.has_run_out:
        why = patience.sentence
    elif patience.cause and not patience.goes_on and (len(points) < num_finalists or any(map(_is_thin, points))):
        why = f"too few rounds of the finals were quiet: {patience.cause}"
    elif doubtful := [p for p in points if p.doubt]:
        why = f"{doubtful[0].label} cannot be judged: {doubtful[0].doubt}"
    elif points and baseline.noise > MAX_NOISE:
        why = figures.spread(baseline.noise)
    else:
        return ""
    return f"{NO_VERDICT}{why}. The original stays. On a quiet machine, --resume goes on from here."


def _is_thin(point: MeasuredVariant) -> bool:
    """Return whether a point was judged by too few rounds to show anything."""
    return point.verdict == "inconclusive" and len(point.process_latencies_ms) < MIN_ROUNDS


def no_gain(
    goal: Goal,
    baseline: MeasuredVariant,
    records: Sequence[TrialRecord],
    points: Sequence[MeasuredVariant] = (),
    beaten: TrialRecord | None = None,
    no_graph: str = "",
) -> str:
    """Return why the original stays, in one sentence.

    Args:
        goal: What the search was to reach.
        baseline: The original in the finals.
        records: Every trial.
        points: The finalists in the finals.
        beaten: The best trial, where it was too slow for the finals.
        no_graph: Why the model cannot be exported as a graph; "" where it can.
    """
    rejected = [r for r in records if r.status == "rejected"]
    too_large = [p for p in points if is_too_large(goal, p) and _is_better(goal, baseline, p)]
    if not records and no_graph:
        return f"No gain: no technique was tried: {no_graph}; the original stays."
    if not records:
        return "No gain: no technique was tried, as none applies here or was left in; the original stays."
    if all_failed(records):
        lost = records[0]
        return f"Nothing that was tried could be measured; the first, {lost.label}: {lost.reason}. The original stays."
    if beaten is not None:
        why = (
            f"nothing that kept the quality is as fast as the original; {beaten.label} comes nearest, at "
            f"{beaten.speedup:.2f}x"
        )
    elif rejected and not any(r.status == "done" for r in records):
        fastest = max(rejected, key=lambda r: r.speedup or 0.0)
        why = f"nothing that was tried stayed within the limits; the fastest, {fastest.label}: {fastest.reason}"
    elif too_large:
        first = too_large[0]
        why = f"{first.label} is better, but held {first.peak_bytes / 2**20:,.0f} MiB in the finals, more than allowed"
    elif goal.objective == "memory":
        why = "nothing that was tried needs less memory at its peak than the original"
    elif goal.objective == "size":
        why = "nothing that was tried is smaller on disk than the original"
    else:
        why = (
            f"nothing that was tried is proved better than the original in {goal.objective} "
            f"(noise floor {noise_in_words(baseline)})"
        )
    return f"No gain: {why}; the original stays."


def gain(
    goal: Goal,
    baseline: MeasuredVariant,
    best: MeasuredVariant,
    compile_only: MeasuredVariant | None,
    quality_name: str,
    *,
    is_fair: bool = True,
) -> str:
    """Return what was gained, in one sentence.

    Args:
        goal: What the search was to reach.
        baseline: The original in the finals.
        best: The winner in the finals.
        compile_only: torch.compile alone; None where it was not measured.
        quality_name: The quality's name, for people.
        is_fair: Whether the original's memory is that of the model alone.
    """
    low, high = best.speedup_ci95
    text = f"{best.label} is {best.speedup:.2f}x as fast as the original (95% interval {low:.2f} to {high:.2f})"
    if goal.objective == "memory":
        text += f" and holds {baseline.peak_bytes / best.peak_bytes:.2f}x less memory at its peak"
        if not is_fair:
            text += f" ({UNFAIR_MEMORY})"
    if goal.objective == "size":
        text += f" and is {baseline.size_bytes / best.size_bytes:.2f}x smaller on disk"
    if compile_only is not None and best.steps != compile_only.steps:
        where = " in the screening" if compile_only.verdict == "screened" else ""
        text += f", torch.compile alone {compile_only.speedup:.2f}x{where}"
    if best.quality is not None:
        before = "" if baseline.quality is None else f"{baseline.quality:.4g} before, "
        text += f"; {quality_name}: {before}{best.quality:.4g} after"
        if baseline.quality is not None:
            text += f" ({figures.change(best.change, goal.max_drop)})"
    if best.fixed_batch is not None:
        text += f"; fixed to batch {best.fixed_batch}"
    if is_in_process(best.steps):
        text += f". {CANNOT_BE_SAVED}{ADVICE}"
    return text + "."


def screened_original(facts: TargetFacts, records: Sequence[TrialRecord]) -> MeasuredVariant:
    """Return the original as a point where no process of the finals measured it.

    Its latency is the median of those measured beside the variants, or else the profile's.
    """
    beside = [r.baseline_latency_ms for r in records if r.baseline_latency_ms]
    profiled = [profile.total_s * 1e3 for profile, count in facts.profiles for _ in range(count)]
    latency_ms = statistics.median(beside) if beside else statistics.fmean(profiled)
    return MeasuredVariant(
        latency_ms=latency_ms,
        throughput_per_s=facts.num_samples * 1e3 / latency_ms,
        peak_bytes=0,
        size_bytes=facts.original_bytes,
        quality=facts.score,
        verdict="screened",
    )


def is_open(
    goal: Goal,
    space: Space,
    records: Sequence[TrialRecord],
    points: Sequence[MeasuredVariant],
    beaten: TrialRecord | None,
) -> bool:
    """Return whether more time could change the verdict.

    It could if no trial was measured and some were stopped or not begun although techniques apply, or if the finals
    have not judged the best trial.

    Args:
        goal: What the search was to reach.
        space: The recipes that can be made.
        records: Every trial.
        points: The finalists in the finals.
        beaten: The best trial, where it was too slow for the finals.
    """
    if not any(record.status in ("done", "rejected") for record in records) and not all_failed(records):
        return bool(space.techniques)
    best = next(iter(ranked(goal, records)), None)
    if best is None or beaten is not None:
        return False
    judged = next((point for point in points if point.number == best.number), None)
    if judged is None:
        return True
    has_few = len(judged.process_latencies_ms) < MIN_ROUNDS and judged.verdict == "inconclusive"
    return goal.asks_for_speed and has_few


def out_of_time(records: Sequence[TrialRecord], best: TrialRecord | None, needed_s: float) -> str:
    """Say that nothing was proved because the time was up.

    Args:
        records: Every trial.
        best: The best trial that the finals did not judge; None without one.
        needed_s: About the budget in seconds that a verdict takes.
    """
    if best is not None and best.speedup is not None:
        seen = f"in the screening, {best.label} was {best.speedup:.2f}x as fast as the original, which proves nothing"
    elif records:
        ended = next((record for record in records if record.status == "stopped"), records[0])
        seen = f"{ended.label} {ended.reason}"
    else:
        seen = "no technique was tried"
    return (
        f"Inconclusive: the time was up before anything was proved; {seen}. A verdict takes a budget of about "
        f"{needed_s:.0f} s. The original stays."
    )


def unmeasured(best: TrialRecord) -> str:
    """Say that the finals measured no variant: each failed to load or to run in a fresh process.

    Args:
        best: The best trial of the search.
    """
    return (
        f"No verdict: neither {best.label} nor another variant ran in the finals, so nothing was compared with the "
        "original. The original stays."
    )


def is_too_large(goal: Goal, point: MeasuredVariant) -> bool:
    """Return whether a point takes more memory than allowed."""
    return goal.max_memory_bytes is not None and point.peak_bytes > goal.max_memory_bytes


def untried(goal: Goal, space: Space, records: Sequence[TrialRecord]) -> list[UntriedTechnique]:
    """Return the techniques that apply here and were in no trial, with reasons, the largest bound first."""
    stopped = {step.technique for record in records if record.status == "stopped" for step in record.steps}
    tried = {step.technique for record in records if record.status != "stopped" for step in record.steps}
    reached = max((r.speedup for r in records if r.status == "done" and r.speedup), default=1.0)
    found = []
    for name, technique in space.techniques.items():
        bound = technique.most
        if name in tried:
            continue
        if name in stopped:
            reason = STOPPED
        elif space.table[name].restores_quality:
            reason = "it gives quality back to a recipe that loses it, and the search came to none"
        elif goal.asks_for_speed and bound <= reached:
            reason = f"by itself it could gain {bound:.2f}x at most, and {reached:.2f}x was reached without it"
        elif goal.objective == "memory" and space.original_bytes and bound <= 1 and not technique.saves_memory:
            reason = "it neither saves memory nor makes a step faster"
        else:
            reason = TIME_UP
        found.append(UntriedTechnique(technique=name, bound=bound, reason=reason))
    return sorted(found, key=lambda entry: -entry.bound)


def out_of_reach(entries: Sequence[UntriedTechnique]) -> int:
    """Return how many techniques were not tried because the time was up."""
    return sum(entry.reason in (TIME_UP, STOPPED) for entry in entries)


def pareto(records: Sequence[TrialRecord]) -> list[int]:
    """Return the numbers of the trials that no other one beats in all of speed, size and quality."""
    points = {
        r.number: (-r.speedup, float(r.size_bytes), r.drop)
        for r in records
        if r.status in ("done", "rejected") and r.speedup and r.size_bytes and r.drop is not None
    }
    return [
        number
        for number, mine in points.items()
        if not any(all(a <= b for a, b in zip(other, mine, strict=True)) and other != mine for other in points.values())
    ]


def point_of(record: TrialRecord, num_samples: float) -> MeasuredVariant | None:
    """Return a trial outside the finals as a point with its screening figures; None where it was not timed."""
    if record.latency_ms is None or record.speedup is None or record.speedup_ci95 is None:
        return None
    return MeasuredVariant(
        steps=record.steps,
        label=record.label,
        number=record.number,
        latency_ms=record.latency_ms,
        beside_ms=record.baseline_latency_ms,
        throughput_per_s=num_samples * 1e3 / record.latency_ms,
        peak_bytes=record.peak_bytes or 0,
        size_bytes=record.size_bytes or 0,
        quality=record.quality,
        agreement=record.agreement,
        share_of_limit=record.share_of_limit,
        speedup=record.speedup,
        speedup_ci95=record.speedup_ci95,
        fixed_batch=record.fixed_batch,
        verdict="screened",
    )
