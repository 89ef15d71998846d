"""Prune a model while it is trained: cut as a schedule says, and keep the zeros after every step."""

from collections.abc import Mapping

from torch import Tensor, nn

from whet.errors import CheckpointError
from whet.techniques.mechanisms.pruning.masks import Masks, Scope
from whet.techniques.mechanisms.pruning.schedule import CubicSchedule
from whet.trainer.checkpoints import TrainingState

STATE = "pruning"


class GradualPruning:
    """Cut the smallest weights of a model by a schedule, in a loop that calls `after_step` after each step.

    Args:
        schedule: How much is zero after which step.
        scope: Whether one threshold holds for the whole model ("global"), or one for each weight ("layer").

    Attributes:
        masks: The weights that are held at zero.
    """

    def __init__(self, model: nn.Module, schedule: CubicSchedule, scope: Scope = "global") -> None:
        self.masks = Masks(model)
        self._schedule, self._scope = schedule, scope
        if schedule.begin_step == 0 and schedule.cuts_after(0):
            self.masks.cut(schedule.sparsity(0), scope)

    def after_step(self, step: int) -> bool:
        """Cut where the schedule says so, and keep the zeros.

        Args:
            step: The optimiser steps that have been made.

        Returns:
            Whether weights were cut.
        """
        if not self._schedule.cuts_after(step):
            self.masks.enforce()
            return False
        self.masks.cut(self._schedule.sparsity(step), self._scope)
        return True

    def state(self) -> TrainingState:
        """Return the masks as a part of a checkpoint."""
        return TrainingState({f"{STATE}.{name}": mask for name, mask in self.masks.kept.items()})

    def restore(self, state: TrainingState) -> None:
        """Take the masks of a checkpoint.

        Raises:
            CheckpointError: It holds none, or those of another model.
        """
        found: Mapping[str, Tensor] = {
            name.removeprefix(f"{STATE}."): mask for name, mask in state.tensors.items() if name.startswith(f"{STATE}.")
        }
        shapes = {name: mask.shape for name, mask in found.items()}
        if shapes != {name: mask.shape for name, mask in self.masks.kept.items()}:
            raise CheckpointError("the checkpoint's masks are not those of this model; begin a new run")
        self.masks.use(found)
