"""Make a trainer whose parts a recipe has changed: what whet train, the tuner and its proofs run."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

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
from whet.techniques.training_technique import TrainingStage

NOT_PLAIN = "the loop clips or accumulates gradients, which needs all of them at once"


# From which stage of ZeRO on a technique is not borne, up to which one it is, and why.
_NOT_SHARDED = {
    "adamw_8bit": (2, 0, "a checkpoint does not divide its state of 8-bit numbers"),
    "chunked_loss": (3, 2, "it needs the weights of the head after forward, when they are divided again"),
}


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


class StageRefusal(NamedTuple):
    """Say why a technique does not bear a stage of ZeRO, as the rest of a sentence, and which stage it bears."""

    why: str
    instead: int


def stage_refusal(step: Step, stage: int) -> StageRefusal | None:
    """Return why a technique does not bear a stage of ZeRO; None where it does."""
    first, instead, why = _NOT_SHARDED.get(step.technique, (4, 3, ""))
    if stage >= first:
        return StageRefusal(f"does not bear parallel.zero_stage {stage}: {why}", instead)
    if stage == 1 and TRAINING_TABLE[step.technique].stage is TrainingStage.OPTIMIZER:
        return StageRefusal("changes the optimiser, which parallel.zero_stage 1 has divided", 2)
    return None


def refusal(workload: TrainingWorkload, parts: Parts, steps: Sequence[Step], machine: Machine) -> str:
    """Return why a recipe's steps do not apply to a training run; "" where they do."""
    found = [(step, verdict.reason) for step, verdict in unfit(parts, steps, TRAINING_TABLE, machine)]
    if not updates_plainly(workload):
        found += [(step, NOT_PLAIN) for step in steps if TRAINING_TABLE[step.technique].updates_early]
    return "; ".join(f"{step.technique}: {why}" for step, why in found)
