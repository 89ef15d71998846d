"""Time the steps of one variant in a process of the final comparison."""

from pydantic import BaseModel

from whet.comparison.run import Run
from whet.core.recipe import Step
from whet.measure.memory import TakenMemory
from whet.techniques.proof.divergence import divergence
from whet.tuner.training.shared_training import opened


class StepsRequest(BaseModel, frozen=True):
    """Tell a process what to time.

    Attributes:
        steps: The recipe; empty for the original.
        batch_factor: How many of the target's batches become one.
        num_steps: Optimiser steps that are timed as one.
    """

    target: str
    steps: tuple[Step, ...] = ()
    timing_s: float
    batch_factor: int = 1
    num_steps: int = 1


def time_steps(request: StepsRequest) -> Run:
    """Train from the seed, and time the steps after the first ones. The peak is what the training adds to a process."""
    taken = TakenMemory()
    with opened(request.target, request.steps, batch_factor=request.batch_factor) as training:
        trainer = training.prepared().trainer
        run = training.timed(trainer, request.timing_s, num_steps=request.num_steps)
        if why := divergence([float(loss) for loss in trainer.losses]):
            return Run(failure=why)
        return run.model_copy(update={"peak_bytes": training.most(taken.peak_bytes())})
