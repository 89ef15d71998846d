"""Take the width of the planner's intervals from the runs that were left out, and count how many runs they cover."""

import math
from collections.abc import Sequence

from planner_runs import Point
from scipy.stats import t as student

from whet.planner.prediction import Prediction

Pair = tuple[Point, Prediction]


def width(errors: Sequence[float]) -> float:
    """Return the share to each side in which nineteen of twenty further errors lie, if they are normal around zero."""
    root = math.sqrt(sum(error**2 for error in errors) / len(errors))
    return float(root * student.ppf(0.975, len(errors)))


def step_miss(pair: Pair) -> float:
    """Return by which share the published time of a step differs from the predicted one."""
    run, prediction = pair
    return run.published_s / prediction.step_s.value - 1


def memory_miss(pair: Pair) -> float:
    """Return by which share the published memory differs from the predicted one."""
    run, prediction = pair
    return 1 / (1 + run.memory_error(prediction)) - 1


def covered(misses: Sequence[float], share: float) -> int:
    """Return how many published figures lie within an interval of a share to each side."""
    return sum(abs(miss) <= share for miss in misses)


def covered_unseen(misses: Sequence[float]) -> int:
    """Return how many figures lie within intervals that are taken from the others, without the figure itself."""
    others = [[*misses[:place], *misses[place + 1 :]] for place in range(len(misses))]
    return sum(abs(miss) <= width(rest) for miss, rest in zip(misses, others, strict=True) if rest)
