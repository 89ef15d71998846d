"""Say what a loop may do beside a step, so that each technique states what it bears, and hold a loop to it.

What can be seen when a recipe is applied is checked then: several processes, wrappers, sharded parameters. What comes
later is checked before the first update that it would spoil.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from whet.errors import RecipeError
from whet.techniques.mechanisms.parts import Parts, num_processes


class Use(StrEnum):
    """Name what a loop may do with a model and an optimiser beside forward, backward and step."""

    CLIPPING = "clipping"  # of gradients, or anything else that reads them between backward and step
    ACCUMULATION = "accumulation"  # several backwards for a step
    SCALER = "GradScaler"  # torch.amp's loss scale
    CLOSURE = "closure"  # optimizer.step(closure), as Lightning's Trainer calls it
    SCHEDULE = "schedule"  # of learning rates, made before or after the recipe is applied
    DDP = "DDP"  # several processes with DistributedDataParallel, or sums of gradients by hand
    FSDP2 = "FSDP2"  # several processes with fully_shard, called before the recipe is applied
    TRAINER = "Trainer"  # of transformers
    LIGHTNING = "Lightning"
    ACCELERATE = "accelerate"


Refuses = Mapping[Use, str]
"""Map what a technique does not bear to the reason."""

NEEDS_ALL_GRADIENTS: Refuses = {
    Use.CLIPPING: "each gradient is used in backward, before the others are there",
    Use.ACCUMULATION: "each gradient is used in backward, before the next batch could add to it",
    Use.SCALER: "each gradient is used in backward, before it could be unscaled",
    Use.DDP: "each gradient is used in backward, before the processes have summed it",
    Use.TRAINER: "it takes the norm of all gradients in each step, for its log",
}


OWN_LOADER: Refuses = {
    Use.TRAINER: "it makes its loader itself; set dataloader_num_workers in its arguments",
    Use.LIGHTNING: "configure_optimizers does not see the loader; set num_workers in the DataLoader",
}
EXCHANGES = "an update exchanges the parameters' data, which undoes what DDP has registered to sum gradients"
EXCHANGES_SHARDS = "an update exchanges the parameters' data, which fully_shard divides and joins itself"


def is_sharded(model: nn.Module) -> bool:
    """Return whether fully_shard has divided parameters of a model among processes."""
    return any(hasattr(p, "device_mesh") for p in model.parameters())


def uses_of(model: nn.Module) -> tuple[Use, ...]:
    """Return how several processes train a model, as far as it can be seen now."""
    if is_sharded(model):
        return (Use.FSDP2,)
    is_wrapped = any(isinstance(module, DistributedDataParallel) for module in model.modules())
    return (Use.DDP,) if is_wrapped or num_processes() > 1 else ()


def why_refused(refuses: Refuses, model: nn.Module) -> str:
    """Return why a technique does not bear how a model is trained; "" where nothing speaks against it."""
    return next((f"it does not bear {use}: {refuses[use]}" for use in uses_of(model) if use in refuses), "")


class ProcessGuard:
    """Check, before an optimiser's update, that how processes train a model is borne by a recipe's techniques.

    A loop may start its processes, wrap the model or shard it after the recipe was applied.
    """

    def __init__(self, model: nn.Module, refuses: Mapping[str, Refuses]) -> None:
        """Begin to watch. `refuses` holds what each technique of the recipe does not bear, by its name."""
        self._model, self._refuses, self._was_sharded = model, refuses, is_sharded(model)
        self._is_checked = False

    def __call__(self, optimizer: Optimizer, *_: Any) -> None:
        """Check once, as soon as there are processes.

        Raises:
            RecipeError: A technique does not bear them, or the model's parameters are no longer the optimiser's.
        """
        if self._is_checked or not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return
        if is_sharded(self._model) and not self._was_sharded:
            raise RecipeError(
                "fully_shard came after the recipe was applied, and has given the model other parameters than those "
                "that the recipe and its optimiser know; call fully_shard first, then make the optimiser, then call "
                "whet.prepare"
            )
        for name, refuses in self._refuses.items():
            if why := why_refused(refuses, self._model):
                raise RecipeError(f"{name}: {why}; leave it out of the recipe")
        self._is_checked = True


def guard_processes(parts: Parts, refuses: Mapping[str, Refuses]) -> None:
    """Have an optimiser refuse an update that processes would make wrong."""
    parts.optimizer.register_step_pre_hook(ProcessGuard(parts.model, refuses))
