"""Examine a training script from outside: does it train the same twice, what bounds it, what applies."""

from dataclasses import dataclass

from whet.comparison.run import Run
from whet.errors import ModelError, OptionError, TargetError
from whet.measure.machine import describe
from whet.scripts.injection.command import ScriptOutcome
from whet.scripts.injection.messages import ScriptRecord
from whet.techniques.costs.memory import StepMemory
from whet.techniques.proof.sensitivity import BFLOAT16, SUMS
from whet.tuner.budget import Budget
from whet.tuner.scripts.proof import SAME_LOSS, Original, first_not_finite, relative_gaps
from whet.tuner.scripts.runs import LEAST_STEPS, ScriptRuns, timed_run

_NUM_MOVES = {SUMS: 1, BFLOAT16: 3}  # runs with moved parameters, by how far these are moved
_MORE_RUNS = 3  # after the first one, to examine a script


@dataclass(frozen=True)
class Examined:
    """Hold what was found out about the script as it is.

    Attributes:
        watched: A run whose phases were timed.
        timed: A run that was timed as a whole.
        original: Runs with dropout off, for the proofs.
        memory: What the memory of a step is made of, in the run that was timed.
    """

    watched: ScriptRecord
    timed: Run
    original: Original
    memory: StepMemory | None = None


def examine(runs: ScriptRuns, name: str, budget: Budget) -> Examined:
    """Run the script as it is four times: watched, once more, and with dropout off on all threads and on one.

    Raises:
        TargetError: It cannot be run, or its loop cannot be recognised.
        OptionError: The other runs would not end within the budget.
        ModelError: It does not train the same twice, or its loss is not finite.
    """

    def recorded(outcome: ScriptOutcome) -> ScriptRecord:
        if outcome.record is None and budget.left_s <= 0:
            told = f"to examine {name} takes longer than a budget of {budget.seconds:g} s; give a larger --budget"
            raise OptionError(told)
        if outcome.record is None:
            raise TargetError(f"{name} cannot be tuned from outside: {outcome.failure}")
        return outcome.record

    first = recorded(runs.timed(is_watched=True))
    if _MORE_RUNS * runs.longest_s > budget.left_at_most_s:
        raise OptionError(
            f"to examine {name} takes longer than a budget of {budget.seconds:g} s: a run takes "
            f"{runs.longest_s:.0f} s, and {_MORE_RUNS} more are needed; give a larger --budget, or fewer --steps"
        )
    losses = first.losses
    if len(losses) < LEAST_STEPS:
        raise TargetError(
            f"{name} makes {len(losses)} optimiser steps; give it arguments with which it makes {LEAST_STEPS} or more"
        )
    if all(loss is None for loss in losses):
        raise TargetError(
            f"no loss of {name} was seen: it calls backward on no single number; use whet.prepare in its own loop"
        )
    if (bad := first_not_finite(losses)) is not None:
        raise ModelError(f"the loss of step {bad} of {name} as it is is {losses[bad - 1]}; mend that first")
    second = runs.timed()
    timed = recorded(second)
    again = timed.losses
    gaps = relative_gaps(losses, again)
    apart = next((i for i, gap in enumerate(gaps) if gap > SAME_LOSS), None)
    if apart is not None:
        raise ModelError(
            f"{name} does not train the same twice: step {apart + 1} has the losses {losses[apart]:.6g} and "
            f"{again[apart]:.6g} from the same seeds. Seed every generator of its own "
            "(numpy.random.default_rng, torch.Generator), and sort the files that it reads"
        )
    run = runs.proof()
    own_threads = recorded(run).num_threads
    other = run if describe().cores < 2 else runs.proof(num_threads=2 if own_threads == 1 else 1)
    recorded(other)

    def run_moved(size: float) -> list[ScriptOutcome]:
        found = [runs.moved(size, number) for number in range(_NUM_MOVES[size])]
        return [one for one in found if one.record is not None]  # without one that failed, less is allowed

    return Examined(first, timed_run(second), Original(run, other, run_moved), timed.memory)
