"""Run the steps of a training on each of several processes, so that they are those of one process."""

from typing import Any

import torch
from torch import Tensor, nn

from whet.core.workload import TrainingWorkload
from whet.core.workload.training import Change, Trainer, seed_everything
from whet.parallel.compression import compression_of
from whet.parallel.division import Division
from whet.parallel.summed_step import CountsTargets, SummedStep


class RankTrainer(Trainer):
    """Make optimiser steps together with other processes. Each sees its rows of a batch; the loss is that of all rows.

    Where a batch has rows with few targets, as padded ones have, processes have different numbers of targets. Each
    loss is weighed by them, so that gradients are those of the mean over all targets.
    """

    def __init__(
        self,
        workload: TrainingWorkload,
        division: Division,
        count: CountsTargets,
        *,
        num_parts: int = 1,
        keeps_losses: bool = False,
        change: Change | None = None,
    ) -> None:
        """Begin a training run; `num_parts` is the micro-batches of each process.

        Raises:
            OptionError: The plan's engine cannot accumulate them.
        """
        division.check_parts(num_parts)
        super().__init__(workload, keeps_losses=keeps_losses, change=change)
        self.division, self._count, self._num_parts = division, count, num_parts
        self.called = self.wrapped()
        self.compression = compression_of(self.called)
        seed_everything(seed_of(workload.seed, division.drawing_rank))

    def wrapped(self) -> nn.Module:
        """Return what is called in the place of the model."""
        return self.division.called(self.model)

    def compute(self, batches: list[Any], *, updates: bool = True) -> Tensor:
        """Sum the gradients of one step over all processes, update if asked, and return the loss of all rows."""
        self.optimizer.zero_grad()
        [batch] = batches
        loss = self.summed(batch)
        if updates:
            self.update()
        return torch.tensor(loss, dtype=torch.float64)

    def summed(self, batch: Any) -> float:
        """Add the gradients of one step over all processes, and return the loss of all rows."""
        step = SummedStep(self.division, self.called, batch, self._num_parts, self._count)
        for part in step:
            step.backward(self._loss(part))
        return step.loss()

    def update(self) -> None:
        if self._workload.clip_norm is not None:
            self.gradient_norm = self.clipped(self._workload.clip_norm)
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()

    def clipped(self, max_norm: float) -> Tensor:
        """Clip the gradients by their norm over all processes, and return it."""
        return self.division.clip(self._parameters, max_norm)

    def _loss(self, batch: Any) -> Tensor:
        return self._checked(self._workload.loss(self.called, batch))


def seed_of(seed: int, drawing_rank: int, step: int = 0) -> int:
    """Return the seed of what a process draws, such as dropout: of its own, and the run's for the first process."""
    return (seed + drawing_rank * 1_000_003 + step * 7_919_000_017) % 2**32  # as NumPy takes
