"""Take the state of a training, so that it goes on bit for bit, and put it back."""

from typing import Any

from whet.core.workload.training import Trainer
from whet.trainer.checkpoints import (
    TrainingState,
    generator_state,
    load_generators,
    load_model,
    load_optimizer,
    model_tensors,
    optimizer_tensors,
)
from whet.trainer.checkpoints.state import MODEL
from whet.trainer.gradual_pruning import GradualPruning

RUN = "run"  # the part of a checkpoint that the loop itself keeps
_SCHEDULE = "schedule"
_OF_SCHEDULE = ("last_epoch", "base_lrs", "_last_lr", "_step_count")


def state_of(
    trainer: Trainer,
    values: dict[str, Any],
    pruning: GradualPruning | None = None,
    *,
    saves_frozen: bool = True,
) -> TrainingState:
    """Return the state of a training between two steps. Tensors are not copied.

    Args:
        values: What the loop keeps: numbers, texts, and lists and dicts of these.
        saves_frozen: Whether parameters are saved that are not trained. `restore` needs none of them.
    """
    kept: dict[str, Any] = {RUN: values}
    if trainer.scheduler is not None:
        known = trainer.scheduler.state_dict()
        kept[_SCHEDULE] = {name: known[name] for name in _OF_SCHEDULE}
    model = model_tensors(trainer.model)
    if not saves_frozen:
        frozen = _frozen(trainer)
        model = TrainingState({name: x for name, x in model.tensors.items() if name not in frozen})
    found = TrainingState(values=kept) | model
    found = found | optimizer_tensors(trainer.model, trainer.optimizer) | generator_state()
    return found if pruning is None else found | pruning.state()


def _frozen(trainer: Trainer) -> set[str]:
    """Return the names, in a checkpoint, of the parameters that are not trained."""
    parameters = trainer.model.named_parameters(remove_duplicate=False)
    return {f"{MODEL}.{name}" for name, p in parameters if not p.requires_grad}


def restore(trainer: Trainer, state: TrainingState, pruning: GradualPruning | None = None) -> None:
    """Put the state of a training back.

    Args:
        trainer: The training, made of the same model, optimiser and recipe.

    Raises:
        CheckpointError: The state is another training's.
    """
    # A checkpoint without the parameters that are not trained is completed with the model's own.
    own = model_tensors(trainer.model).tensors
    frozen = {name: own[name] for name in _frozen(trainer) if name not in state.tensors}
    load_model(trainer.model, TrainingState({**state.tensors, **frozen}, state.values))
    if pruning is not None:
        pruning.restore(state)
    load_optimizer(trainer.model, trainer.optimizer, state)
    if trainer.scheduler is not None:
        # The functions of the schedule are those of the configuration.
        functions = [None] * len(trainer.optimizer.param_groups)
        trainer.scheduler.load_state_dict({**state.values[_SCHEDULE], "lr_lambdas": functions})
    load_generators(state)
