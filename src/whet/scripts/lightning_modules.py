"""Have Lightning call a module whose `training_step` is its forward pass through the module's own `__call__`.

Lightning calls `training_step` directly. Where that calls several parts of the module, no module is called that holds
all parameters, and a technique that changes a forward, such as compilation, would have nothing to change.
"""

import functools
import gc
import sys
from typing import Any

from torch import nn
from torch.optim import Optimizer

from whet.training.module_class import AddedForward, extend

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
_STEP = "_whet_training_step"


class _TrainingStepForward(AddedForward):
    """Run `training_step` as the forward of a call that comes from it, and the module's own forward otherwise.

    A compiler would trace what Lightning does when a value is logged, which takes minutes; it gets the module's parts.
    """

    is_eager = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the training step, or the module's own forward, returned."""
        step = vars(self).get(_STEP)
        return super().forward(*args, **kwargs) if step is None else step(*args, **kwargs)  # type: ignore[misc]


def lead_through_call(optimizer: Optimizer) -> None:
    """Lead the training step of the Lightning module of an optimiser through `__call__`, if there is one.

    A module whose parts each hold everything, or that steps its optimiser itself, stays as it is.
    """
    kinds = tuple(
        kind
        for kind in (getattr(sys.modules.get(name), "LightningModule", None) for name in _PACKAGES)
        if isinstance(kind, type)
    )
    if not kinds:
        return
    for module in modules_that_hold(optimizer, kinds):
        if module.automatic_optimization and not any(holds(part, optimizer) for part in module.children()):
            _lead(module)


def _lead(module: Any) -> None:
    if "training_step" in vars(module):
        return
    plain = module.training_step
    extend(module, _TrainingStepForward)

    @functools.wraps(plain)
    def training_step(*args: Any, **kwargs: Any) -> Any:
        vars(module)[_STEP] = plain
        try:
            return module(*args, **kwargs)
        finally:
            del vars(module)[_STEP]

    vars(module)["training_step"] = training_step


def modules_that_hold(optimizer: Optimizer, kinds: tuple[type, ...] = (nn.Module,)) -> list[Any]:
    """Return all modules alive that hold every parameter that an optimiser updates, the smallest ones first."""
    found = [one for one in gc.get_objects() if issubclass(type(one), kinds) and holds(one, optimizer)]
    return sorted(found, key=lambda module: sum(1 for _ in module.modules()))


def holds(module: nn.Module, optimizer: Optimizer) -> bool:
    """Return whether a module holds every parameter that the optimiser updates."""
    updated = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return bool(updated) and updated <= {id(p) for p in module.parameters()}
