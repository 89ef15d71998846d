"""Remember which models and optimisers a recipe has changed, so that no technique is applied twice."""

from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

from torch import nn
from torch.optim import Optimizer

from whet.core.recipe import Step
from whet.errors import RecipeError
from whet.techniques.mechanisms.parts import Parts

_MODELS: WeakKeyDictionary[nn.Module, tuple[Step, ...]] = WeakKeyDictionary()
_OPTIMIZERS: WeakKeyDictionary[Optimizer, tuple[Step, ...]] = WeakKeyDictionary()
_IN_PLACE_OF: WeakKeyDictionary[Optimizer, Optimizer] = WeakKeyDictionary()  # the loop's own -> what replaced it


def remember(before: Parts, after: Parts, steps: Sequence[Step]) -> None:
    """Remember that a recipe's steps have changed these parts."""
    if not steps:
        return
    _MODELS[after.model] = _OPTIMIZERS[after.optimizer] = tuple(steps)
    if after.optimizer is not before.optimizer:
        _IN_PLACE_OF[before.optimizer] = after.optimizer


def current(parts: Parts) -> Parts:
    """Return the parts with the optimiser that an earlier recipe put in the place of theirs, if one did."""
    return replace(parts, optimizer=_IN_PLACE_OF.get(parts.optimizer, parts.optimizer))


def is_prepared(parts: Parts, steps: Sequence[Step]) -> tuple[bool, bool]:
    """Return whether a recipe's steps have changed the model already, and whether they have changed the optimiser.

    Raises:
        RecipeError: Another recipe has changed them.
    """
    states = _MODELS.get(parts.model), _OPTIMIZERS.get(parts.optimizer)
    for name, known in zip(("model", "optimiser"), states, strict=True):
        if known is not None and set(known) != set(steps):
            raise RecipeError(
                f"the {name} is prepared already, with {' + '.join(map(str, known))}; make the model and the optimiser "
                "anew to apply another recipe"
            )
    return states[0] is not None, states[1] is not None
