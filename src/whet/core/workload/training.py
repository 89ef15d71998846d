"""Describe a training run whose optimiser step is to be made fast, and run its loop."""

import contextlib
import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from whet.core.workload.batch_parts import num_samples_of as num_samples_of
from whet.core.workload.micro_batches import micro_batches
from whet.core.workload.quality import Quality
from whet.errors import TargetError, type_name
from whet.measure.clock import synchronize

Loss = Callable[[nn.Module, Any], Tensor]
"""Take the model and a batch, and return the loss as a tensor of one element."""


@dataclass(frozen=True)
class OutputLoss:
    """Compute the loss as most loops do: from the model's output and the last element of the batch.

    A batch that is a dict is passed to the model by name. A tuple or list is passed by position, without its last
    element if there is a loss function.

    Attributes:
        loss: Called as loss(output, target); the target is the whole batch where that is a tensor or a dict. None where
            the output is the loss or holds it, as with the models of transformers.
    """

    loss: Callable[[Any, Any], Tensor] | None = None

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the loss of one batch, or raise TargetError without a loss function where the output holds no loss."""
        if isinstance(batch, Mapping):
            output, target = model(**batch), batch
        elif not isinstance(batch, tuple | list):
            output, target = model(batch), batch
        elif self.loss is None or len(batch) == 1:
            output, target = model(*batch), batch[-1]
        else:
            output, target = model(*batch[:-1]), batch[-1]
        if self.loss is not None:
            return self.loss(output, target)
        found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", output)
        if not isinstance(found, Tensor) or found.dim():
            raise TargetError(
                f"the model returned {type_name(output)} without a loss; return (model, optimizer, loader, loss)"
            )
        return found


@dataclass(frozen=True, kw_only=True)
class TrainingWorkload:
    """Describe a model and everything that an optimiser step of its training needs.

    Two variants of a training run start from the same seed and see the same batches in the same order, so that their
    losses can be compared step by step.

    Attributes:
        model: The model. It is trained in place, from the weights it has.
        loss: Called as loss(model, batch); returns a tensor of one element.
        optimizer: Called as optimizer(parameters); returns the optimiser.
        batches: One pass over the data, in the same order each time it is iterated from the same seed. A DataLoader
            that shuffles is fine: it draws its order from PyTorch's generator, which is seeded before, apart from what
            the model draws.
        evaluation: Scores the trained model, on held-out data.
        num_accumulated: Batches that one optimiser step sums its gradients over.
        clip_norm: The norm that gradients are clipped to; None leaves them as they are.
        schedule: Called as schedule(optimizer); returns a learning-rate scheduler that steps with the optimiser.
        seed: The seed of the generators of Python, NumPy and PyTorch.
        num_samples: Samples in one batch; the first dimension of its first tensor, if not given.
        name: The name shown to people.

    Raises:
        TargetError: A field has the wrong type.
    """

    model: nn.Module
    loss: Loss
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    batches: Iterable[Any]
    evaluation: Quality | None = None
    num_accumulated: int = 1
    clip_norm: float | None = None
    schedule: Callable[[Optimizer], LRScheduler] | None = None
    seed: int = 0
    num_samples: float = 0
    name: str = "training"

    def __repr__(self) -> str:
        return f"TrainingWorkload({self.name!r}, {type(self.model).__name__})"

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise TargetError(f"model must be a torch.nn.Module, not {type_name(self.model)}")
        for name in ("loss", "optimizer"):
            if not callable(getattr(self, name)):
                raise TargetError(f"{name} must be a function, not {type_name(getattr(self, name))}")
        if not isinstance(self.batches, Iterable) or isinstance(self.batches, Tensor | str | Mapping):
            raise TargetError(f"batches must be a list or a loader of batches, not {type_name(self.batches)}")
        if self.num_accumulated < 1:
            raise TargetError(f"num_accumulated must be 1 or more; got {self.num_accumulated}")


def seed_everything(seed: int) -> None:
    """Set the seeds of the generators of Python, NumPy and PyTorch."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


States = tuple[Any, Any, Tensor]


def generator_states() -> States:
    """Return the states of the generators of Python, NumPy and PyTorch on the CPU."""
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def _set_states(states: States) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


class DataGenerators:
    """Give the data generators of its own, so that its order does not depend on what the model draws.

    A variant may draw other numbers in forward, as a compiled dropout does. It still sees the same batches.
    """

    def __init__(self, seed: int) -> None:
        with kept_generators():
            seed_everything(seed)
            self._own = generator_states()

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Draw from these generators in the block. The others go on where they were."""
        others = generator_states()
        _set_states(self._own)
        try:
            yield
        finally:
            self._own = generator_states()
            _set_states(others)


@contextlib.contextmanager
def kept_generators() -> Iterator[None]:
    """Put the generators of Python, NumPy and PyTorch back at the end."""
    before = generator_states()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        _set_states(before)


Change = Callable[[nn.Module, Optimizer, Iterable[Any]], Iterable[Any]]
"""Take the model, the optimiser and the batches of a loop, and return what takes their places, in this order."""


class Trainer:
    """Run the training loop: optimiser steps on the batches of a TrainingWorkload, pass after pass.

    Creating a Trainer seeds all generators, puts the model into training mode and builds the optimiser.

    Attributes:
        seed: The seed of the run.
        scheduler: What changes its learning rate; None where the workload has no schedule.
        gradient_norm: The norm of the latest step's gradients before they were clipped, a tensor of one element; None
            where they are not clipped.
        losses: The loss of each optimiser step so far: the mean over the batches whose gradients it sums. They stay
            tensors on the model's device, so that reading them makes no step wait.
    """

    def __init__(self, workload: TrainingWorkload, *, keeps_losses: bool = True, change: Change | None = None) -> None:
        """Begin a training run.

        `change` changes the parts of the loop before the first step, as the techniques of a recipe do.

        Raises:
            TargetError: The workload's function returns no optimiser.
        """
        self.seed = workload.seed
        seed_everything(self.seed)
        self.losses: list[Tensor] = []
        self._keeps_losses = keeps_losses
        self.num_samples = workload.num_samples  # in a batch; if not given, the first batch tells
        self._workload = workload
        self._parameters = list(workload.model.parameters())
        optimizer = workload.optimizer(workload.model.parameters())
        if not isinstance(optimizer, Optimizer):
            raise TargetError(f"optimizer(parameters) must return an optimiser, not {type_name(optimizer)}")
        self.scheduler = workload.schedule(optimizer) if workload.schedule is not None else None
        self.gradient_norm: Tensor | None = None
        self.model, self.optimizer, self._passes = workload.model, optimizer, workload.batches
        if change is not None:
            self.model, self.optimizer, self._passes = change(workload.model, optimizer, workload.batches)
        self._batches = self._endless()
        self._generators = DataGenerators(workload.seed)
        self.model.train()

    def step(self) -> Tensor:
        """Run one optimiser step on the next batches, and return its loss, a tensor of one element."""
        return self._recorded(self.compute(self.next_batches()))

    def next_batches(self) -> list[Any]:
        with self._generators.in_use():
            batches = list(itertools.islice(self._batches, self._workload.num_accumulated))
        self.num_samples = self.num_samples or float(num_samples_of(batches[0]))
        return batches

    def first_batches(self, number: int, *, later: int = 0) -> list[Any]:
        """Return the first batches of a pass from the seed + `later`. The run's generators go on where they were."""
        with kept_generators():
            seed_everything(self._workload.seed + later)
            return list(itertools.islice(self._passes, number))

    def timed_step(self) -> dict[str, float]:
        """Run one optimiser step, and return the seconds of its phases: data_s, compute_s and optimizer_s."""
        began = _now()
        batches = self.next_batches()
        have_data = _now()
        loss = self.compute(batches, updates=False)
        have_gradients = _now()
        self.update()
        self._recorded(loss)
        ended = _now()
        return {
            "data_s": have_data - began,
            "compute_s": have_gradients - have_data,
            "optimizer_s": ended - have_gradients,
        }

    def step_on(self, batches: list[Any]) -> Tensor:
        """Run one optimiser step on these batches, and return its loss without recording it."""
        return self.compute(batches)

    def compute(self, batches: list[Any], *, updates: bool = True) -> Tensor:
        """Sum the gradients of one optimiser step over batches, update the parameters if asked, and return its loss."""
        self.optimizer.zero_grad()
        total: Tensor | None = None
        for batch in batches:
            parts = micro_batches(self.model, batch, factor=1 / len(batches))
            losses = []
            for part in parts:
                loss = self._loss(part)
                if len(batches) > 1:
                    loss = loss / len(batches)
                loss.backward()
                # The loss is copied, since the next step may write into its memory, as a CUDA graph does.
                losses.append(loss.detach().clone())
            total = parts.whole(losses) if total is None else total + parts.whole(losses)
        if updates:
            self.update()
        assert total is not None
        return total

    def update(self) -> None:
        """Clip the gradients, and let the optimiser and its schedule make one step."""
        if self._workload.clip_norm is not None:
            self.gradient_norm = nn.utils.clip_grad_norm_(self._parameters, self._workload.clip_norm)
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()

    def _recorded(self, loss: Tensor) -> Tensor:
        if self._keeps_losses:
            self.losses.append(loss)
        return loss

    def _loss(self, batch: Any) -> Tensor:
        return self._checked(self._workload.loss(self.model, batch))

    @staticmethod
    def _checked(loss: object) -> Tensor:
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise TargetError(f"loss(model, batch) must return a tensor of one element, not {type_name(loss)}")
        return loss

    def _endless(self) -> Iterator[Any]:
        """Yield the batches of one pass after the other."""
        for number in itertools.count(1):
            is_empty = True
            for batch in self._passes:
                is_empty = False
                yield batch
            if is_empty:
                raise TargetError(
                    "batches gives no batch"
                    + (" in its second pass; an iterator works only once, so give a list" if number > 1 else "")
                )


def _now() -> float:
    """Return the time in seconds, once the device has done what it was given."""
    synchronize()
    return time.perf_counter()
