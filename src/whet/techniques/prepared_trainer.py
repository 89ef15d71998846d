"""Make a trainer whose parts a recipe has changed: what whet train, the tuner and its proofs run."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from whet.core.recipe import Step
from whet.core.workload import TrainingWorkload
from whet.core.workload.training import Trainer
from whet.measure.machine import Machine
from whet.techniques.applied import applied, unfit
from whet.techniques.mechanisms.later_notes import all_notes
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.training import TRAINING_TABLE

NOT_PLAIN = "the loop clips or accumulates gradients, which needs all of them at once"


class PreparedTrainer:
    def __init__(
        self, workload: TrainingWorkload, steps: Sequence[Step] = (), kind: Callable[..., Trainer] = Trainer
    ) -> None:
        """Make a trainer; `kind` is what makes it, called as kind(workload, change=...)."""
        self._steps = steps
        self._parts: Parts | None = None
        self.trainer = kind(workload, change=self._changed)

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what the techniques want to be said, and what they have found out in the steps so far."""
        return () if self._parts is None else all_notes(self._parts)

    def _changed(self, model: nn.Module, optimizer: Optimizer, batches: Iterable[Any]) -> Parts:
        self._parts = applied(Parts(model, optimizer, batches), self._steps, TRAINING_TABLE)
        return self._parts


def updates_plainly(workload: TrainingWorkload) -> bool:
    """Return whether a loop neither clips nor accumulates gradients."""
    return workload.clip_norm is None and workload.num_accumulated == 1


def refusal(workload: TrainingWorkload, parts: Parts, steps: Sequence[Step], machine: Machine) -> str:
    """Return why a recipe's steps do not apply to a training run; "" where they do."""
    found = [(step, verdict.reason) for step, verdict in unfit(parts, steps, TRAINING_TABLE, machine)]
    if not updates_plainly(workload):
        found += [(step, NOT_PLAIN) for step in steps if TRAINING_TABLE[step.technique].updates_early]
    return "; ".join(f"{step.technique}: {why}" for step, why in found)
