"""Say which techniques apply and were not tried, and why."""

from collections.abc import Sequence

from whet.tuner.goal import Goal
from whet.tuner.records import TrialRecord
from whet.tuner.result import UntriedTechnique
from whet.tuner.space import Space

TIME_UP = "the time was up before its turn"
STOPPED = "its trial was stopped, as the budget was used up"


def untried(
    goal: Goal, space: Space, records: Sequence[TrialRecord], searched: Space | None = None
) -> list[UntriedTechnique]:
    """Return the techniques that apply here and were in no trial, with reasons, the largest bound first.

    `searched` is the space without what cannot pay; the whole one, if not given.
    """
    stopped = {step.technique for record in records if record.status == "stopped" for step in record.steps}
    tried = {step.technique for record in records if record.status != "stopped" for step in record.steps}
    reached = max((r.speedup for r in records if r.status == "done" and r.speedup), default=1.0)
    worth = space.techniques if searched is None else searched.techniques
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
        elif goal.asks_for_speed and name not in worth:
            reason = f"by itself it could gain {bound:.2f}x at most, which a trial could not tell from noise"
        elif goal.objective == "memory" and space.original_bytes and bound <= 1 and not technique.saves_memory:
            reason = "it neither saves memory nor makes a step faster"
        else:
            reason = TIME_UP
        found.append(UntriedTechnique(technique=name, bound=bound, reason=reason))
    return sorted(found, key=lambda entry: -entry.bound)


def out_of_reach(entries: Sequence[UntriedTechnique]) -> int:
    """Return how many techniques were not tried because the time was up."""
    return sum(entry.reason in (TIME_UP, STOPPED) for entry in entries)
