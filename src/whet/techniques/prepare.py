"""Apply a training recipe in the user's own loop: whet.prepare."""

import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from whet.errors import RecipeError
from whet.machine import describe
from whet.recipe import Recipe
from whet.techniques.training import TRAINING_TABLE
from whet.training.applied import applied, refusals
from whet.training.parts import Parts

_LOG = logging.getLogger("whet")


def prepare(
    model: nn.Module, optimizer: Optimizer, loader: Iterable[Any], *, recipe: Recipe | str | os.PathLike[str]
) -> Parts:
    """Apply a training recipe to the parts of a loop.

        model, optimizer, loader = whet.prepare(model, optimizer, loader, recipe="recipe.toml")

    The model stays the object that it was, with its class, its parameters and their names, so that checkpoints load
    before and after, with and without whet. The optimiser stays the same object too, unless the recipe names another
    algorithm. Call this after the model is on its device and the optimiser is made, before the first step.

    Args:
        model: The model, on its device.
        optimizer: Its optimiser. Learning-rate schedules may be made before or after.
        loader: What the loop iterates over.
        recipe: A recipe for training, the file that holds it, or the directory of a tuning run.

    Returns:
        The model, the optimiser and the loader, to be unpacked.

    Raises:
        RecipeError: The recipe is damaged, is not for training, or a technique of it does not apply here.
    """
    read = recipe if isinstance(recipe, Recipe) else Recipe.read(Path(recipe))
    read = read.checked_for("training")
    parts = Parts(model, optimizer, loader)
    machine = describe()
    for step, reason in refusals(parts, read.steps, TRAINING_TABLE, machine):
        raise RecipeError(f"{step.technique} does not apply here: {reason}; leave it out of the recipe")
    if read.fingerprint and read.fingerprint != machine.fingerprint:
        _LOG.warning("the recipe was proved on another machine: its speed here is not known")
    return applied(parts, read.steps, TRAINING_TABLE)
