"""Apply a training recipe to a Trainer of transformers: whet.prepare_trainer."""

import os
from pathlib import Path
from typing import Any

from whet.core.recipe import Recipe
from whet.errors import OptionError, RecipeError
from whet.techniques.mechanisms.uses import Use
from whet.techniques.prepare import prepare
from whet.techniques.technique import named
from whet.techniques.training import TRAINING_TABLE


def prepare_trainer(trainer: Any, *, recipe: Recipe | str | os.PathLike[str]) -> Any:
    """Apply a training recipe to a Trainer of transformers. Call this after the Trainer is made, before train().

        trainer = whet.prepare_trainer(Trainer(model=model, args=args, ...), recipe="recipe.toml")

    The Trainer makes its optimiser here, as train() would do, and the model and the optimiser are changed before the
    Trainer wraps them. It makes its schedule in train(), for the optimiser that the recipe leaves.

    Args:
        recipe: A recipe for training, the file that holds it, or the directory of a tuning run.

    Returns:
        The same Trainer.

    Raises:
        OptionError: It is no Trainer of transformers.
        RecipeError: The recipe does not fit, or this Trainer makes its model or optimiser anew in train().
    """
    if not all(hasattr(trainer, name) for name in ("create_optimizer", "model", "args", "callback_handler")):
        raise OptionError(f"prepare_trainer takes a Trainer of transformers, not {type(trainer).__name__}")
    read = (recipe if isinstance(recipe, Recipe) else Recipe.read(Path(recipe))).checked_for("training")
    if why := _why_not(trainer, read):
        raise RecipeError(why)
    before = trainer.optimizer
    own = getattr(before, "optimizer", before)  # a Trainer that has trained holds its optimiser wrapped
    try:
        optimizer = trainer.create_optimizer() if own is None else own
        model, optimizer, _ = prepare(trainer.model, optimizer, trainer.train_dataset, recipe=read)
    except BaseException:
        trainer.optimizer = before
        raise
    trainer.optimizer = before if optimizer is own else optimizer
    assert model is trainer.model
    return trainer


def _why_not(trainer: Any, recipe: Recipe) -> str:
    """Return why a recipe cannot be applied to a Trainer; "" where it can."""
    if getattr(trainer, "model_init", None) is not None:
        return "the Trainer makes its model anew in train() (model_init); give it a model"
    if getattr(trainer, "is_fsdp_enabled", False) or getattr(trainer, "is_deepspeed_enabled", False):
        return "the Trainer shards its model in train(), where whet cannot change it; train without FSDP and DeepSpeed"
    for step in recipe:
        if why := named(step, TRAINING_TABLE).refuses.get(Use.TRAINER):
            return f"{step.technique} does not bear this Trainer: {why}; leave it out of the recipe"
    return ""
