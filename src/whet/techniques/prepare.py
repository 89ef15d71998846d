"""Apply a training recipe in the user's own loop: whet.prepare."""

import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from whet.core.recipe import Recipe, Step
from whet.errors import RecipeError
from whet.measure.machine import describe
from whet.techniques.applied import applied, still_to_apply
from whet.techniques.mechanisms.later_notes import tell_later
from whet.techniques.mechanisms.optimizers import guard_state
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.mechanisms.prepared import current, is_prepared, remember
from whet.techniques.technique import named
from whet.techniques.training import TRAINING_TABLE
from whet.techniques.training_technique import TrainingStage

_LOG = logging.getLogger("whet")
_WRAPPERS = {  # modules of classes that wrap a model or an optimiser, and the call that does
    "accelerate.optimizer": "accelerator.prepare(...)",
    "torch.distributed.fsdp.fully_sharded_data_parallel": "it, or shard by fully_shard, which keeps the model's class",
    "lightning.fabric.wrappers": "fabric.setup(...)",
    "lightning_fabric.wrappers": "fabric.setup(...)",
    "lightning.pytorch.core.optimizer": "the Trainer does, in configure_optimizers",
    "pytorch_lightning.core.optimizer": "the Trainer does, in configure_optimizers",
}


def prepare(
    model: nn.Module, optimizer: Optimizer, loader: Iterable[Any], *, recipe: Recipe | str | os.PathLike[str]
) -> Parts:
    """Apply a training recipe to the parts of a loop.

        model, optimizer, loader = whet.prepare(model, optimizer, loader, recipe="recipe.toml")

    The model stays the object that it was, with its class, its parameters and their names, so that checkpoints load
    before and after, with and without whet. The optimiser stays the same object too, unless the recipe names another
    algorithm. Call this after the model is on its device, sharded by fully_shard where it is to be, and the optimiser
    is made, before the first step and before another library wraps them. A second call with the same recipe changes
    nothing. What a loop does that a technique does not bear is refused, here or when it happens.

    Args:
        optimizer: Its optimiser. Learning-rate schedules may be made before or after; with Lightning's Trainer, which
            takes none of an optimiser that it does not know, after.
        loader: What the loop iterates over.
        recipe: A recipe for training, the file that holds it, or the directory of a tuning run.

    Returns:
        The model, the optimiser and the loader, to be unpacked.

    Raises:
        RecipeError: The recipe is damaged, is not for training, or a technique of it does not apply here; or another
            recipe has changed these parts.
    """
    read = recipe if isinstance(recipe, Recipe) else Recipe.read(Path(recipe))
    read = read.checked_for("training")
    _check_unwrapped(model, optimizer)
    parts = current(Parts(model, optimizer, loader))
    steps = _still_to_apply(parts, read.steps)
    if not steps:
        return parts
    _check_groups(read.steps)
    machine = describe()
    changing, done = still_to_apply(parts, steps, TRAINING_TABLE, machine)
    for step, verdict in done:
        _LOG.info("%s: %s", step.technique, verdict.reason)
    if read.fingerprint and read.fingerprint != machine.fingerprint:
        _LOG.warning("the recipe was proved on another machine: its speed here is not known")
    made = applied(parts, changing, TRAINING_TABLE)
    guard_state(made.optimizer)
    remember(parts, made, read.steps)
    tell_later(made, _LOG.warning)
    return made


def _still_to_apply(parts: Parts, steps: Sequence[Step]) -> list[Step]:
    """Return the steps that have not changed these parts yet.

    Raises:
        RecipeError: Another recipe has changed them, or an earlier optimiser still updates the model.
    """
    has_model, has_optimizer = is_prepared(parts, steps)
    if has_model and has_optimizer:
        _LOG.info("the model and the optimiser are prepared with this recipe already")
        return []
    kept = [step for step in steps if _changes_optimizer(step) != has_optimizer] if has_model or has_optimizer else []
    early = [step for step in kept if has_model and TRAINING_TABLE[step.technique].updates_early]
    if early:
        raise RecipeError(
            f"the model is prepared with {early[0].technique} already, so that its first optimiser still updates it in "
            "backward; make the model anew for another optimiser"
        )
    return kept if has_model or has_optimizer else list(steps)


def _check_groups(steps: Sequence[Step]) -> None:
    """Raise RecipeError where two techniques of a recipe exclude each other."""
    claimed: dict[str, str] = {}
    for step in steps:
        name = step.technique
        for group in named(step, TRAINING_TABLE).groups:
            if claimed.setdefault(group, name) != name:
                raise RecipeError(f"{claimed[group]} and {name} exclude each other; leave one out of the recipe")


def _changes_optimizer(step: Step) -> bool:
    return step.technique in TRAINING_TABLE and TRAINING_TABLE[step.technique].stage is TrainingStage.OPTIMIZER


def _check_unwrapped(model: nn.Module, optimizer: Optimizer) -> None:
    """Raise RecipeError where another library has wrapped the model or the optimiser, or the model has no forward."""
    for part in (model, optimizer):
        if call := _WRAPPERS.get(type(part).__module__):
            raise RecipeError(f"{type(part).__name__} is a wrapper already; call whet.prepare before {call}")
    for kind in type(model).__mro__:
        if "forward" in vars(kind):
            is_lightning = kind.__name__ == "LightningModule" and "lightning" in kind.__module__
            if kind is nn.Module or is_lightning:
                raise RecipeError(
                    f"{type(model).__name__} has no forward that could be changed; give whet.prepare the network that "
                    "its training_step calls, such as self.model"
                )
            return
