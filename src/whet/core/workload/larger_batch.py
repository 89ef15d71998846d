"""Train on larger batches: the same samples in the same order, in fewer optimiser steps."""

import math
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from whet.core.workload.batch_parts import joined
from whet.core.workload.training import TrainingWorkload
from whet.errors import TargetError

_LINEAR = ("SGD",)  # optimisers whose learning rate grows with the batch; with its root for all that divide by a norm

Rule = Literal["linear", "sqrt"]


def learning_rate_rule(optimizer: str) -> Rule:
    """Return the customary rule for the learning rate of a larger batch, given the optimiser's class.

    It is linear for SGD (Goyal et al., 2017, arXiv:1706.02677), and the square root for Adam and its like (Malladi et
    al., 2022, arXiv:2205.10287).
    """
    return "linear" if optimizer in _LINEAR else "sqrt"


def learning_rate_factor(growth: float, rule: Rule) -> float:
    """Return what to multiply the learning rate with for a batch that is `growth` times as large."""
    return growth if rule == "linear" else math.sqrt(growth)


@dataclass(frozen=True)
class JoinedBatches:
    """Give `number` batches as one. What is left at the end of a pass, too few to join, is left out."""

    batches: Iterable[Any]
    number: int

    def __iter__(self) -> Iterator[Any]:
        """Yield the joined batches of a pass; raise TargetError where they are too few or cannot be joined."""
        left, is_empty = iter(self.batches), True
        while len(group := list(islice(left, self.number))) == self.number:
            is_empty = False
            yield joined(group)
        if is_empty:
            raise TargetError(f"a pass has {len(group)} batches, too few for a batch {self.number} times as large")

    def __len__(self) -> int:
        assert isinstance(self.batches, Sized)
        return len(self.batches) // self.number


def with_larger_batch(workload: TrainingWorkload, factor: int) -> TrainingWorkload:
    """Return a training on batches that are `factor` times as large.

    The learning rate is larger by the optimiser's customary rule. The schedule makes `factor` steps at each optimiser
    step, so that after equal numbers of samples it is where it was.
    """

    def optimizer(parameters: Iterable[nn.Parameter]) -> Optimizer:
        made = workload.optimizer(parameters)
        growth = learning_rate_factor(factor, learning_rate_rule(type(made).__name__))
        for group in made.param_groups:
            group["lr"] *= growth
        return made

    def schedule(optimizer: Optimizer) -> LRScheduler:
        assert workload.schedule is not None
        made = workload.schedule(optimizer)
        once = made.step

        def step(*args: Any, **kwargs: Any) -> None:
            for _ in range(factor):
                once(*args, **kwargs)

        made.step = step  # type: ignore[method-assign]
        return made

    return replace(
        workload,
        optimizer=optimizer,
        batches=JoinedBatches(workload.batches, factor),
        schedule=None if workload.schedule is None else schedule,
        num_samples=workload.num_samples * factor,
    )
