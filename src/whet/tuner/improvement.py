"""Say which point is better than the original, in the objective and within the limits of a search."""

from collections.abc import Sequence

from whet.comparison.claim import Verdict
from whet.tuner.goal import Goal
from whet.tuner.result import MeasuredVariant

_SIZE_MARGIN = 0.99  # a variant that is smaller by less than a percent is not called smaller


def best_first(goal: Goal, points: Sequence[MeasuredVariant]) -> list[MeasuredVariant]:
    if goal.asks_for_speed:
        return sorted(points, key=lambda p: -p.speedup)
    if goal.objective == "memory":
        return sorted(points, key=lambda p: p.peak_bytes)
    return sorted(points, key=lambda p: (p.size_bytes, -p.speedup))


def improves(goal: Goal, baseline: MeasuredVariant, point: MeasuredVariant) -> bool:
    """Return whether a point is measured better than the original in the objective, within the limits."""
    return not is_too_large(goal, point) and not is_too_slow(goal, point) and is_better(goal, baseline, point)


def is_better(goal: Goal, baseline: MeasuredVariant, point: MeasuredVariant) -> bool:
    """Return whether a point is better than the original in the objective, whatever its time and memory."""
    if goal.asks_for_speed:
        return point.verdict == Verdict.PASS
    if goal.objective == "memory":
        return point.is_smaller
    return point.size_bytes < _SIZE_MARGIN * baseline.size_bytes


def is_too_large(goal: Goal, point: MeasuredVariant) -> bool:
    """Return whether a point takes more memory than allowed."""
    return goal.max_memory_bytes is not None and point.peak_bytes > goal.max_memory_bytes


def is_too_slow(goal: Goal, point: MeasuredVariant) -> bool:
    """Return whether a point that saves memory may take longer than allowed."""
    return goal.objective == "memory" and 1 / point.speedup_ci95[0] > goal.most_slowdown
