"""Time the steps of a recipe in processes of its own for the finals, and prove the held-out loss in pairs of runs."""

import math
from collections.abc import Callable
from pathlib import Path

from whet.comparison.run import Run
from whet.comparison.variant import in_words, run_of
from whet.core.recipe import Step
from whet.techniques.proof.loss_proof import LossPair, LossProof
from whet.tuner.finals import NamedSide
from whet.tuner.loss_pairs import prove_in_pairs
from whet.tuner.training.context import TrainingContext
from whet.tuner.training.steps_process import StepsRequest, time_steps
from whet.tuner.training.trial import LossRequest, LossRun, train_for_loss

RUN_S = 2.0  # seconds of timing in each process
_LIMIT_S = 300.0  # of a process
LEAST_STEPS, MOST_STEPS = 24, 400  # of a run for the held-out loss


class PairServers:
    """Let the two processes of a pair be forks of one server; `renew` starts another one for those of the next pair."""

    def __init__(self, renew: Callable[[], None]) -> None:
        self._renew = renew
        self._served: set[str] = set()

    def begin(self, name: str) -> None:
        """Prepare for the next process of the side of this name. A side that is measured again begins its pair anew."""
        if not self._served or len(self._served) == 2 or name in self._served:
            self._renew()
            self._served.clear()
        self._served.add(name)


def steps_side(context: TrainingContext, servers: PairServers, name: str, request: StepsRequest) -> NamedSide:
    """Return a side that times steps, with a directory of its name. A run that fails says why."""

    def run() -> Run:
        servers.begin(name)
        return run_of(context.run(time_steps, request, context.directory / name, _LIMIT_S))

    return NamedSide(name, run)


def prove_losses(
    context: TrainingContext,
    steps: tuple[Step, ...],
    num_steps: int,
    *,
    allowed: float,
    left_s: Callable[[], float],
    report: Callable[[int], None] = lambda number: None,
    batch_factor: int = 1,
) -> LossProof | None:
    """Train pairs to tell whether a recipe reaches the original's held-out loss; return None without time for one.

    Args:
        num_steps: Optimiser steps of each run, on the training's own batches.
        batch_factor: How many batches become one in the second run of each pair. It makes so many steps less, and the
            first run has the recipe too.
    """
    change = "the recipe" if batch_factor == 1 else "the larger batch"

    def run_pair(seed: int) -> LossPair | None:
        old, new = (
            _loss_run(context, chosen, seed, num_steps, left_s(), factor)
            for chosen, factor in ((() if batch_factor == 1 else steps, 1), (steps, batch_factor))
        )
        if left_s() <= 0 and (math.isnan(old.begin) or math.isnan(new.begin)):
            return None  # the end of the budget cut the pair off
        return LossPair(
            seed=seed,
            old=old.held_out,
            new=new.held_out,
            old_middle=old.middle,
            new_middle=new.middle,
            begin=old.begin,
            old_failure=old.failure,
            new_failure=new.failure,
        )

    facts = context.facts
    return prove_in_pairs(
        run_pair,
        allowed=allowed,
        score=facts.quality_name,
        higher_is_better=facts.higher_is_better,
        change=change,
        report=report,
    )


def _loss_run(
    context: TrainingContext, steps: tuple[Step, ...], seed: int, num_steps: int, left_s: float, batch_factor: int
) -> LossRun:
    """Return what a run of so many steps, or of their samples in larger batches, scored, or why its process failed."""
    if left_s <= 0:
        return LossRun.failed("it was not started: the budget was used up")
    request = LossRequest(
        target=context.target, steps=steps, seed=seed, num_steps=num_steps // batch_factor, batch_factor=batch_factor
    )
    folder: Path = context.directory / f"loss-{seed}-{len(steps)}-{batch_factor}"
    outcome = context.run(train_for_loss, request, folder, min(left_s, _LIMIT_S))
    return outcome.answer(LossRun) or LossRun.failed(in_words(outcome.failure) if outcome.failure else "no answer")
