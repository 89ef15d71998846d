"""Run the steps of a training on each of several processes, so that they are those of one process."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from whet.core.workload import TrainingWorkload
from whet.core.workload.batch_parts import parts_of
from whet.core.workload.training import Change, Trainer, seed_everything
from whet.errors import OptionError
from whet.parallel.division import Division, accumulating

CountsTargets = Callable[[Any], int]
"""Return how many targets a batch has: what its loss is the mean of."""


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
        change: Change | None = None,
    ) -> None:
        """Begin a training run; `num_parts` is the micro-batches of each process.

        Raises:
            OptionError: The plan's engine cannot accumulate them.
        """
        if num_parts > 1 and division.plan.static_graph:
            raise OptionError(
                f"parallel.static_graph needs gradients to be summed in each backward, and a step has {num_parts} "
                "micro-batches; leave it out, or leave out batch.micro_batch_size"
            )
        super().__init__(workload, keeps_losses=False, change=change)
        self.division, self._count, self._num_parts = division, count, num_parts
        self.called = division.called(self.model)
        seed_everything(seed_of(workload.seed, division.data_rank))

    def compute(self, batches: list[Any], *, updates: bool = True) -> Tensor:
        """Sum the gradients of one step over all processes, update if asked, and return the loss of all rows."""
        self.optimizer.zero_grad()
        parts = [part for batch in batches for part in parts_of(batch, self._num_parts)]
        counts = [self._count(part) for part in parts]
        missing = self._num_parts * len(batches) - len(parts)  # all processes must call the model equally often
        parts, counts = parts + parts[:1] * missing, counts + [0] * missing
        [total] = self.division.total([sum(counts)])
        loss = torch.zeros((), dtype=torch.float64)
        for number, (part, count) in enumerate(zip(parts, counts, strict=True), 1):
            with accumulating(self.division, self.called, is_last=number == len(parts)):
                found = self._loss(part)
                # Processes average their gradients, hence their number.
                (found * (count * self.division.degrees.data / total)).backward()
            if count:
                loss += found.detach().double().cpu() * (count / total)
        [whole] = self.division.total([float(loss)])
        if updates:
            self.update()
        return torch.tensor(whole, dtype=torch.float64)

    def update(self) -> None:
        if self._workload.clip_norm is not None:
            self.gradient_norm = self.division.clip(self._parameters, self._workload.clip_norm)
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()

    def _loss(self, batch: Any) -> Tensor:
        return self._checked(self._workload.loss(self.called, batch))


def seed_of(seed: int, data_rank: int, step: int = 0) -> int:
    """Return the seed of what a process draws, such as dropout: of its own, and the run's for the first process."""
    return (seed + data_rank * 1_000_003 + step * 7_919_000_017) % 2**32  # NumPy takes no larger one
