"""Train pairs of runs of a script, and read what their losses show."""

import math

from whet.core.recipe import Step
from whet.scripts.injection.command import ScriptOutcome
from whet.techniques.proof.loss_proof import LossPair
from whet.tuner.scripts.proof import first_not_finite
from whet.tuner.scripts.runs import ScriptRuns


def loss_pair(runs: ScriptRuns, steps: tuple[Step, ...], seed: int) -> LossPair:
    """Train the script as it is and with a recipe, both with a seed of their own."""
    old, new = (runs.for_loss(chosen, seed) for chosen in ((), steps))
    before, after = (_scores(outcome) for outcome in (old, new))
    return LossPair(
        seed=seed,
        old=before[1],
        new=after[1],
        old_middle=before[0],
        new_middle=after[0],
        begin=_first_loss(old),
        old_failure=_loss_fault(old),
        new_failure=_loss_fault(new),
    )


def _scores(outcome: ScriptOutcome) -> tuple[float, float]:
    """Return the mean loss of a quarter of the steps before the middle, and of the last quarter; infinite if failed."""
    losses = [loss for loss in outcome.record.losses if loss is not None] if outcome.record is not None else []
    if not losses:
        return math.inf, math.inf
    half, quarter = len(losses) // 2, max(1, len(losses) // 4)
    middle, last = losses[max(0, half - quarter) : max(1, half)], losses[-quarter:]
    return sum(middle) / len(middle), sum(last) / len(last)


def _first_loss(outcome: ScriptOutcome) -> float:
    losses = outcome.record.losses if outcome.record is not None else []
    return next((loss for loss in losses if loss is not None), math.nan)


def _loss_fault(outcome: ScriptOutcome) -> str:
    """Return how a run failed or diverged, in words; "" where it did neither."""
    if outcome.record is None:
        return outcome.failure
    bad = first_not_finite(outcome.record.losses)
    return "" if bad is None else f"the loss of step {bad} is {outcome.record.losses[bad - 1]}"
