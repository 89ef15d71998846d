"""Define the space of a search for a training, without what cannot pay."""

from collections.abc import Mapping, Sequence

from whet.core.recipe import Step
from whet.techniques.technique import AnyTechnique
from whet.techniques.training import TRAINING_TABLE
from whet.tuner.goal import Goal
from whet.tuner.space import ApplicableTechnique, Space

COMPILE = Step(technique="compile")
_LEAST_GAIN = 1.03  # of a technique's bound


def worth_trying(
    entries: Sequence[ApplicableTechnique],
    goal: Goal,
    peak_bytes: int,
    table: Mapping[str, AnyTechnique] = TRAINING_TABLE,
) -> Space:
    """Return the space without the techniques that cannot pay: screening could not tell their gain from noise.

    Where memory is asked for, these are what neither saves any nor makes a step faster. Otherwise the time that a
    technique saves counts beside the shortest step that any other technique allows: where products in bfloat16 take
    a quarter of the time, an update that took 1 % of a step takes 4 % of what is left. Where the original needs
    more memory (`peak_bytes`) than is allowed, what saves some may be what makes a fast recipe fit.
    """
    if goal.asks_for_speed:
        ceiling = max((entry.most for entry in entries), default=1.0)
        needs_less = goal.max_memory_bytes is not None and peak_bytes > goal.max_memory_bytes
        kept = [
            entry
            for entry in entries
            if (1 - 1 / entry.most) * ceiling >= 1 - 1 / _LEAST_GAIN or (needs_less and entry.saves_memory)
        ]
    else:
        kept = [entry for entry in entries if entry.most > 1 or entry.saves_memory]
    return Space(kept, table, COMPILE, peak_bytes)
