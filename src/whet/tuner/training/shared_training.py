"""Open a training in one process or in each of several, which share its batches, and make its steps together."""

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from whet.comparison.child import run_alone
from whet.comparison.run import Run
from whet.core.recipe import Step
from whet.core.workload import TrainingWorkload
from whet.core.workload.batch_parts import num_samples_of, rows_of_batch
from whet.core.workload.measurables import TrainingSteps
from whet.core.workload.training import Trainer
from whet.errors import OptionError
from whet.measure.device import device_type_of
from whet.measure.machine import Machine
from whet.parallel.division import Division, division_of
from whet.parallel.joining import joined
from whet.parallel.rank_trainer import RankTrainer
from whet.parallel.ranks import Ranks
from whet.parallel.started import neighbours, started_together
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.prepared_trainer import PreparedTrainer, refusal, stage_refusal
from whet.techniques.training.accumulation import ACCUMULATION, num_parts_of
from whet.tuner.training.opening import open_training
from whet.tuner.training.plan_techniques import of_loop, plan_of
from whet.tuner.training.shared_step import SharedStep
from whet.tuner.training.shared_words import num_threads
from whet.ui.figures import counted

_PROFILED_STEPS = 10
_ASKED_S, _MOST_ASKED = 0.05, 16  # how many steps the first process asks the others for at once


class RowsTrainer(RankTrainer):
    """Train on this process's rows of whole batches, each of which every process reads."""

    def __init__(self, workload: TrainingWorkload, division: Division, **options: Any) -> None:
        super().__init__(workload, division, num_samples_of, keeps_losses=True, **options)

    def next_batches(self) -> list[Any]:
        return [self._rows(batch) for batch in super().next_batches()]

    def backward(self, batch: Any) -> None:
        """Compute the gradients of a whole batch, as a step does.

        Where the first steps send gradients whole before they are compressed, some are made before.
        """
        rows = self._rows(batch)
        while self.compression is not None and self.compression.num_whole:
            self.summed(rows)
            self.model.zero_grad(set_to_none=True)
        self.summed(rows)

    def agreed(self, why: str) -> str:
        """Return what speaks against this training on the first process on which something does; "" for none."""
        return agreed(self.division.ranks, why)

    def _rows(self, batch: Any) -> Any:
        size, share = num_samples_of(batch), self.division.rows
        check_rows(size, share.number)
        return rows_of_batch(batch, share.of(size))


@dataclass(frozen=True)
class SharedTraining:
    """Hold a training whose model a plan has divided, and which no technique has changed yet.

    Attributes:
        workload: The training as its target describes it.
        division: Which part of it this process does.
        steps: The techniques that change the loop of this process.
        num_parts: Into how many parts this process divides its rows of a batch.
    """

    workload: TrainingWorkload
    division: Division
    steps: tuple[Step, ...]
    num_parts: int = 1

    @property
    def ranks(self) -> Ranks:
        return self.division.ranks

    def refusal(self, machine: Machine) -> str:
        """Return why the techniques do not apply here; "" where they do on all processes."""
        workload, stage = self.workload, self.division.plan.stage
        unborne = [(step, found) for step in self.steps if (found := stage_refusal(step, stage)) is not None]
        if unborne and not self.division.is_alone:
            return "; ".join(f"{step.technique} {found.why}" for step, found in unborne)
        parts = Parts(workload.model, workload.optimizer(workload.model.parameters()), workload.batches)
        return agreed(self.ranks, refusal(workload, parts, self.steps, machine))

    def prepared(self) -> PreparedTrainer:
        """Return the trainer with the techniques applied."""
        if self.division.is_alone:
            return PreparedTrainer(self.workload, self.steps)
        workload = replace(self.workload, optimizer=self.division.optimizer(self.workload.optimizer))
        kind: Any = partial(RowsTrainer, division=self.division, num_parts=self.num_parts)
        return PreparedTrainer(workload, self.steps, kind)

    def timed(self, trainer: Trainer, timing_s: float, *, num_steps: int = 1) -> Run:
        """Time steps on the first process, while the others make as many; theirs have no times.

        All processes wait for each other in each step, so that its time is the slowest one's.
        """
        if self.division.is_alone:
            return run_alone(TrainingSteps(self.workload, trainer, num_steps=num_steps), timing_s)
        steps, run = SharedSteps(self.workload, trainer, self.division, num_steps=num_steps), Run()
        if self.ranks.is_first:
            run = run_alone(steps, timing_s)
            steps.end()
        else:
            steps.follow()
        return run

    def profiled(self, trainer: Trainer) -> SharedStep | None:
        """Return where the time of a step goes; None where one process makes it.

        Its last steps leave the processes with different parameters: the trainer is of no use afterwards.
        """
        if not isinstance(trainer, RowsTrainer):
            return None
        phases = [trainer.timed_step() for _ in range(_PROFILED_STEPS)]
        with self.division.summed_later(trainer.called):
            alone = [sum(trainer.timed_step().values()) for _ in range(_PROFILED_STEPS)]
        return SharedStep(
            total_s=statistics.median(sum(one.values()) for one in phases),
            alone_s=min(alone),
            optimizer_s=statistics.median(one["optimizer_s"] for one in phases),
        )

    def most(self, number: int) -> int:
        """Return the largest of the numbers of all processes."""
        found: list[int] = self.ranks.gather("the largest", number)
        return max(found)


class SharedSteps(TrainingSteps):
    """Make steps that the first process times, while the others follow it: it alone decides how many there are."""

    def __init__(self, workload: TrainingWorkload, trainer: Trainer, division: Division, *, num_steps: int = 1) -> None:
        super().__init__(workload, trainer, num_steps=num_steps)
        self._division = division
        self._left, self._asked, self._asked_at = 0, 1, -math.inf

    def step(self) -> None:
        """Make a step on the first process, and ask the others for it; they are asked for several short ones at once.

        An exchange for each would be a part of what is timed.
        """
        if not self._left:
            now = time.perf_counter()
            step_s = max((now - self._asked_at) / self._asked, 1e-9)
            self._ask(max(1, min(_MOST_ASKED, int(_ASKED_S / step_s))))
        self._left -= 1
        super().step()

    def end(self) -> None:
        """Make the steps that were asked for, and let the others go."""
        while self._left:
            self.step()
        self._division.total_of_all([0])

    def follow(self) -> None:
        """Make the steps that the first process asks for, until it asks for no more."""
        while number := int(self._division.total_of_all([0])[0]):
            for _ in range(number):
                super().step()

    def _ask(self, number: int) -> None:
        self._division.total_of_all([number])
        self._asked = self._left = number
        self._asked_at = time.perf_counter()


def check_rows(size: int, number: int) -> None:
    """Raise OptionError where a batch has fewer rows than processes share it."""
    if size < number:
        raise OptionError(
            f"a batch of {counted(size, 'row')} gives none to some of the {number} processes that share it; make the "
            "batches larger, or --nproc smaller"
        )


def agreed(ranks: Ranks, why: str) -> str:
    """Return what the first process says that says anything, on all processes; "" where none does."""
    return next((one for one in ranks.gather("an objection", why) if one), "")


@contextmanager
def opened(
    target: str, steps: Sequence[Step] = (), *, seed: int | None = None, batch_factor: int = 1
) -> Iterator[SharedTraining]:
    """Open a training, and divide it as a recipe says among the processes that were started together, for the block.

    Args:
        target: The target's name or address.
        steps: The recipe; the plan among it counts where there are several processes.
        seed: See open_training, as for batch_factor.

    Raises:
        WhetError: It cannot be opened, or not be divided so.
    """
    if started_together():
        torch.set_num_threads(num_threads(neighbours()))
    plan = plan_of(steps)
    with joined("cpu", plan.timeout_s) as ranks:
        workload = open_training(target, seed=seed, batch_factor=batch_factor)
        if ranks.is_alone:
            yield SharedTraining(workload, Division.alone(), of_loop(steps))
            return
        division = division_of(plan, ranks, torch.device("cpu"))
        division.share(workload.model)
        num_parts = max(1, -(-int(num_parts_of(steps)) // ranks.world_size))
        # Each process divides its own rows, and weighs its parts by the rows of all.
        kept = tuple(step for step in of_loop(steps) if step.technique != ACCUMULATION)
        yield SharedTraining(workload, division, kept, num_parts)


def check_shareable(workload: TrainingWorkload, batches: Sequence[Any], number: int) -> None:
    """Check that so many processes can share a training, by its first batches.

    Raises:
        OptionError: They cannot; the message says what to do.
    """
    for batch in batches:
        check_rows(num_samples_of(batch), number)
    if workload.num_accumulated > 1:
        raise OptionError(
            f"the training sums the gradients of {workload.num_accumulated} batches in a step, and --nproc divides "
            "steps of one batch: set num_accumulated to 1 and make the batches larger, or leave --nproc out"
        )
    kind = device_type_of(workload.model.parameters())
    if kind != "cpu":
        raise OptionError(
            f"--nproc divides a training among the cores of this machine, and this one's model is on {kind}; leave "
            "--nproc out"
        )
    for name, module in workload.model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats:
            raise OptionError(
                f"{name} is a batch norm, of which each of {number} processes would see its own rows alone: that is "
                "another training. Leave --nproc out, or take a norm within each row, such as GroupNorm"
            )
