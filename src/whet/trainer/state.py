"""Take the state of a training, so that it goes on bit for bit, and put it back."""

from typing import Any

from whet.training.checkpoints import (
    TrainingState,
    generator_state,
    load_generators,
    load_model,
    load_optimizer,
    model_tensors,
    optimizer_tensors,
)
from whet.training.pruning.gradual import GradualPruning
from whet.workload.training import Trainer

RUN = "run"  # the part of a checkpoint that the loop itself keeps
_SCHEDULE = "schedule"
_OF_SCHEDULE = ("last_epoch", "base_lrs", "_last_lr", "_step_count")


def state_of(trainer: Trainer, values: dict[str, Any], pruning: GradualPruning | None = None) -> TrainingState:
    """Return the state of a training between two steps. Tensors are not copied.

    Args:
        trainer: The training.
        values: What the loop keeps: numbers, texts, and lists and dicts of these.
        pruning: What holds weights at zero; None where nothing does.
    """
    kept: dict[str, Any] = {RUN: values}
    if trainer.scheduler is not None:
        known = trainer.scheduler.state_dict()
        kept[_SCHEDULE] = {name: known[name] for name in _OF_SCHEDULE}
    found = TrainingState(values=kept) | model_tensors(trainer.model)
    found = found | optimizer_tensors(trainer.model, trainer.optimizer) | generator_state()
    return found if pruning is None else found | pruning.state()


def restore(trainer: Trainer, state: TrainingState, pruning: GradualPruning | None = None) -> None:
    """Put the state of a training back.

    Args:
        trainer: The training, made of the same model, optimiser and recipe.
        state: What `state_of` returned.
        pruning: What holds weights at zero; None where nothing does.

    Raises:
        CheckpointError: The state is another training's.
    """
    load_model(trainer.model, state)
    if pruning is not None:
        pruning.restore(state)
    load_optimizer(trainer.model, trainer.optimizer, state)
    if trainer.scheduler is not None:
        # The functions of the schedule are those of the configuration.
        functions = [None] * len(trainer.optimizer.param_groups)
        trainer.scheduler.load_state_dict({**state.values[_SCHEDULE], "lr_lambdas": functions})
    load_generators(state)
