"""Give the verdict of a search of any kind: gain, no gain, inconclusive or failed, in a sentence, with what is kept."""

from collections.abc import Sequence
from dataclasses import dataclass

from whet.comparison.claim import Verdict
from whet.measure.quiet import QuietWait
from whet.measure.stats import MAX_NOISE
from whet.tuner import figures
from whet.tuner.budget import enough
from whet.tuner.budget_plan import MIN_ROUNDS, ROUNDS
from whet.tuner.finals import Finals
from whet.tuner.goal import Goal, ranked
from whet.tuner.improvement import best_first, is_better, is_too_large, is_too_slow
from whet.tuner.kind import Kind
from whet.tuner.records import TrialRecord
from whet.tuner.result import NO_VERDICT, MeasuredVariant, Word
from whet.ui.figures import num_bytes, percent

_BEATEN = 0.9  # a trial whose whole screening interval lies below this speedup is slower in any process
_STAYS = "The original stays."


@dataclass(frozen=True)
class Decision:
    """Hold a verdict.

    Attributes:
        best: What is kept: the best point, or the original.
        needed_s: The budget in seconds that would have done; None where time is not what is missing.
        is_disturbed: Whether it is the machine, or the measurements, that left it open.
    """

    word: Word
    sentence: str
    best: MeasuredVariant
    needed_s: float | None = None
    is_disturbed: bool = False


def decide(
    kind: Kind, finals: Finals, records: Sequence[TrialRecord], reference: MeasuredVariant | None = None
) -> Decision:
    """Give the verdict, once what the points of the finals owe has been proved."""
    goal, baseline, patience = kind.goal, finals.baseline, kind.work.patience
    better = [point for point in best_first(goal, finals.points) if kind.improves(point, baseline)]
    kept = next((point for point in better if kind.is_proved(point)), None)
    if kept is not None:
        needed_s = kind.needed_s(records, finals.points)
        left_out = _left_out(kind, kept, better, finals.points, needed_s)
        return Decision("gain", kind.gained(kept, baseline, reference) + left_out, kept)
    if better:
        return _unproved(kind, baseline, better, kind.needed_s(records, finals.points))
    counts_noise = kind.noise_from == "original" and goal.objective != "quality"  # which claims no speed
    if why := disturbed(finals, patience, counts_noise=counts_noise):
        told = f"{NO_VERDICT}{why}. {_STAYS} On a quiet machine, --resume goes on from here."
        return Decision("inconclusive", told, baseline, is_disturbed=True)
    failed = "; ".join(finals.failures)
    if failed and not finals.points:
        told = f"{NO_VERDICT}the finals failed ({failed}), so nothing was compared. {_STAYS}"
        return Decision("inconclusive", told, baseline)
    beside = f" In the finals failed {failed}." if failed else ""
    if (seen := unfinished(kind, [r for r in records if r.number not in finals.lost], finals.points)) is not None:
        needed_s = kind.needed_s(records, finals.points)
        told = f"Inconclusive: the time was up before anything was proved; {seen}. {_STAYS}{beside} {enough(needed_s)}."
        return Decision("inconclusive", told, baseline, needed_s)
    word: Word = "failed" if all_failed(records) else "no-gain"
    told = kind.stays(finals.points, baseline) if word == "no-gain" else ""
    told = told or no_gain(goal, baseline, records, finals.points, kind.facts.no_graph)
    return Decision(word, told + beside, baseline)


def noise_in_words(baseline: MeasuredVariant) -> str:
    """Return the gain that as many pairs of the original with itself could show by chance, in words."""
    return percent(baseline.noise - 1, decimals=1) if baseline.noise > 1 else "unknown: too few runs"


def all_failed(records: Sequence[TrialRecord]) -> bool:
    """Return whether nothing that was tried could be built and run, so that there is nothing to judge."""
    return bool(records) and all(r.status in ("failed", "refused") for r in records)


def is_beaten(goal: Goal, record: TrialRecord) -> bool:
    """Return whether a trial is so much slower than the original that the finals need not prove it."""
    slowest = record.speedup if record.speedup_ci95 is None else record.speedup_ci95[1]
    return goal.asks_for_speed and slowest is not None and slowest < _BEATEN


def _left_out(
    kind: Kind,
    kept: MeasuredVariant,
    better: Sequence[MeasuredVariant],
    points: Sequence[MeasuredVariant],
    needed_s: float,
) -> str:
    """Return why points that are better than what is kept, or smaller, are left out; "" where there are none."""
    goal = kind.goal
    told = [f" {point.label} is left out: {_open(kind, point, needed_s)}." for point in better[: better.index(kept)]]
    if goal.objective == "memory":
        told += [
            f" {point.label} is left out: it takes {num_bytes(point.peak_bytes)}, but up to "
            f"{1 / point.speedup_ci95[0]:.3g} times the original's time; {goal.most_slowdown:g} is allowed."
            for point in points
            if point.is_smaller and point.peak_bytes < kept.peak_bytes and is_too_slow(goal, point)
        ]
    return "".join(told)


def _unproved(kind: Kind, baseline: MeasuredVariant, better: Sequence[MeasuredVariant], needed_s: float) -> Decision:
    first = better[0]
    gain = f" ({first.speedup:.2f}x)" if kind.goal.asks_for_speed else ""
    told = f"{first.label} is better{gain}, but {_open(kind, first, needed_s)}. {_STAYS}"
    if all(map(kind.is_disproved, better)):
        return Decision("no-gain", told, baseline)
    is_short = any(map(kind.is_unfinished, better))
    return Decision("inconclusive", told, baseline, needed_s if is_short else None)


def _open(kind: Kind, point: MeasuredVariant, needed_s: float) -> str:
    """Return why a point whose times are better is not kept."""
    why = kind.why_open(point)
    return f"{why}; {enough(needed_s)}" if kind.is_unfinished(point) else why


def disturbed(finals: Finals, patience: QuietWait, *, counts_noise: bool = True) -> str:
    """Return why what was measured does not count, as a clause; "" where it does.

    Args:
        counts_noise: Whether the sides were measured apart, so that the original's own scatter is in the ratios.
    """
    points = finals.points
    if patience.has_run_out:
        return patience.sentence
    is_short = len(points) + len(finals.lost) < finals.num_finalists or any(map(_is_thin, points))
    if finals.is_disturbed and not patience.goes_on and is_short:
        return f"too few rounds of the finals were quiet: {patience.cause}"
    if doubtful := [point for point in points if point.doubt]:
        return f"{doubtful[0].label} cannot be judged: {doubtful[0].doubt}"
    if points and counts_noise and finals.baseline.noise > MAX_NOISE:
        return figures.spread(finals.baseline.noise)
    return ""


def _is_thin(point: MeasuredVariant) -> bool:
    """Return whether a point was judged by too few rounds to show anything."""
    return point.verdict == Verdict.INCONCLUSIVE and len(point.process_latencies_ms) < MIN_ROUNDS


def unfinished(kind: Kind, records: Sequence[TrialRecord], points: Sequence[MeasuredVariant]) -> str | None:
    """Return what was seen as the time was up, where more of it could change the verdict; else None.

    It could if no trial was measured and some were stopped or not begun although techniques apply, or if the finals
    have not judged the best trial by as many pairs as there are in full.
    """
    goal = kind.goal
    if not any(record.status in ("done", "rejected") for record in records):
        if all_failed(records) or not kind.space_to_search().techniques:
            return None
        ended = next((record for record in records if record.status == "stopped"), None)
        return "no technique was tried" if ended is None else f"{ended.label} {ended.reason}"
    best = kind.best_trial(records)
    if best is None or is_beaten(goal, best):
        return None
    point = next((point for point in points if point.number == best.number), None)
    if point is None:
        is_promising = not goal.asks_for_speed or (best.speedup or 0.0) > 1
        seen = f"in the screening, {best.label} was {best.speedup or 1:.2f}x as fast as the original"
        return f"{seen}, which proves nothing" if is_promising else None
    if _may_still_win(goal, point):
        low, high = point.speedup_ci95
        pairs = len(point.process_latencies_ms)
        seen = f"{point.speedup:.2f}x ({low:.2f}–{high:.2f})" if goal.asks_for_speed else num_bytes(point.peak_bytes)
        return f"in {pairs} pairs of the finals, {point.label} showed {seen}, which does not tell"
    return None


def _may_still_win(goal: Goal, point: MeasuredVariant) -> bool:
    """Return whether the finals ended before a point had all of its pairs, without telling."""
    num_pairs = len(point.process_latencies_ms)
    if goal.asks_for_speed:
        return point.verdict == Verdict.INCONCLUSIVE and num_pairs < ROUNDS
    return goal.objective == "memory" and num_pairs < MIN_ROUNDS


def no_gain(
    goal: Goal,
    baseline: MeasuredVariant,
    records: Sequence[TrialRecord],
    points: Sequence[MeasuredVariant] = (),
    no_graph: str = "",
) -> str:
    """Return why the original stays, in a sentence; `no_graph` says why the model cannot be exported as a graph."""
    rejected = [r for r in records if r.status == "rejected"]
    too_large = [p for p in points if is_too_large(goal, p) and is_better(goal, baseline, p)]
    best = next(iter(ranked(goal, records)), None)
    if not records and no_graph:
        return f"No gain: no technique was tried: {no_graph}; the original stays."
    if not records:
        return "No gain: no technique was tried, as none applies here or was left in; the original stays."
    if all_failed(records):
        lost = records[0]
        return f"Nothing that was tried could be measured; the first, {lost.label}: {lost.reason}. {_STAYS}"
    if best is not None and not points and goal.asks_for_speed and (best.speedup or 0.0) <= 1:
        why = f"nothing that kept the quality is as fast as the original; {best.label} comes nearest, at "
        why += f"{best.speedup or 0:.2f}x"
    elif rejected and not any(r.status == "done" for r in records):
        fastest = max(rejected, key=lambda r: r.speedup or 0.0)
        which = "fastest" if fastest.speedup else "first"
        why = f"nothing that was tried stayed within the limits; the {which}, {fastest.label}: {fastest.reason}"
    elif too_large:
        first = too_large[0]
        why = f"{first.label} is better, but held {num_bytes(first.peak_bytes)} in the finals, more than allowed"
    elif goal.objective == "memory":
        took = f"; the best trial, {best.label}, took {num_bytes(best.peak_bytes)}" if best and best.peak_bytes else ""
        why = f"nothing that was tried is proved to need less memory at its peak than the original{took}"
    elif goal.objective == "size":
        why = "nothing that was tried is smaller on disk than the original"
    else:
        why = (
            f"nothing that was tried is proved better than the original in {goal.objective} "
            f"(noise floor {noise_in_words(baseline)})"
        )
    return f"No gain: {why}; the original stays.{_original_too_large(goal, baseline)}"


def _original_too_large(goal: Goal, baseline: MeasuredVariant) -> str:
    if not is_too_large(goal, baseline) or goal.max_memory_bytes is None:
        return ""
    return (
        f" The original takes {num_bytes(baseline.peak_bytes)}, more than the {num_bytes(goal.max_memory_bytes)} "
        "allowed; --objective memory looks for a smaller one."
    )


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
