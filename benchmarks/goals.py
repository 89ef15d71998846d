"""Whether a goal is reached: the rule for docs/results.md, with ratios of two sides that were measured in turns."""

from collections.abc import Sequence
from typing import Any

from whet.comparison.claim import claim_of


def goal_claim(what: str, before: Sequence[float], after: Sequence[float], goal: float) -> dict[str, Any]:
    """Return how many times faster a side is, and whether that reaches a goal.

    Args:
        what: The claim in words.
        before: Times of the other side, in any unit; before[i] and after[i] were measured in one round.
        after: Times of the side that is to be faster.
        goal: The ratio that is asked for.
    """
    claim = claim_of(before, after)
    low, high = claim.ci95 or (0.0, float("inf"))
    return {"what": what, "ratio": claim.ratio, "ci95": [low, high], "goal": goal, "verdict": verdict(low, high, goal)}


def verdict(low: float, high: float, goal: float) -> str:
    """Return "reached" where a whole interval reaches the goal, "missed" where no part of it does, and else "open"."""
    return "reached" if low >= goal else "missed" if high < goal else "open"
