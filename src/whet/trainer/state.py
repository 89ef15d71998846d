"""Take the state of a training, so that it goes on bit for bit, and put it back."""

from typing import Any

from torch import Tensor

from whet.training.checkpoints import (
    TrainingState,
    generator_state,
    load_generators,
    load_optimizer,
    optimizer_state,
)
from whet.workload.training import Trainer

_MODEL = "model."


def state_of(trainer: Trainer, values: dict[str, Any]) -> TrainingState:
    """Return the state of a training between two steps.

    Args:
        trainer: The training.
        values: What else is to be kept: numbers, texts, and lists and dicts of these.
    """
    tensors: dict[str, Tensor] = {f"{_MODEL}{name}": value for name, value in trainer.model.state_dict().items()}
    kept = dict(values)
    for tensors_of, values_of in (optimizer_state(trainer.model, trainer.optimizer), generator_state()):
        tensors |= tensors_of
        kept |= values_of
    if trainer.scheduler is not None:
        known = trainer.scheduler.state_dict()
        kept["scheduler"] = {name: known[name] for name in ("last_epoch", "base_lrs", "_last_lr", "_step_count")}
    return TrainingState(tensors, kept)


def restore(trainer: Trainer, state: TrainingState) -> None:
    """Put the state of a training back.

    Args:
        trainer: The training, made of the same model, optimiser and recipe.
        state: What `state_of` returned.
    """
    weights = {name.removeprefix(_MODEL): x for name, x in state.tensors.items() if name.startswith(_MODEL)}
    trainer.model.load_state_dict(weights)
    load_optimizer(trainer.model, trainer.optimizer, state)
    if trainer.scheduler is not None:
        trainer.scheduler.load_state_dict(state.values["scheduler"])
    load_generators(state)
