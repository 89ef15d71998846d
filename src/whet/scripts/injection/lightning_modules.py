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

from whet.techniques.mechanisms.module_class import AddedForward, extend

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
_STEP = "_whet_training_step"


class _TrainingStepForward(AddedForward):
    """Run `training_step` as the forward of a call that comes from it, and the module's own forward otherwise.

    A compiler would trace what Lightning does when a value is logged, which takes minutes; it gets the module's parts.
    """

    is_eager = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        step = vars(self).pop(_STEP, None)  # calls from within the training step are of the module's own forward
        return super().forward(*args, **kwargs) if step is None else step(*args, **kwargs)  # type: ignore[misc]


def lead_through_call(module: Any) -> bool:
    """Call the training step of a Lightning module through `__call__`, and return whether the module is one.

    A module that steps its optimiser itself stays as it is: its forward would contain the step.
    """
    kinds = [getattr(sys.modules.get(name), "LightningModule", None) for name in _PACKAGES]
    is_one = isinstance(module, tuple(kind for kind in kinds if isinstance(kind, type)))
    if not is_one or not module.automatic_optimization:
        return False
    plain = module.training_step
    extend(module, _TrainingStepForward)

    @functools.wraps(plain)
    def training_step(*args: Any, **kwargs: Any) -> Any:
        vars(module)[_STEP] = plain
        try:
            return module(*args, **kwargs)
        finally:
            vars(module).pop(_STEP, None)

    vars(module)["training_step"] = training_step
    return True


def modules_that_hold(optimizer: Optimizer) -> list[nn.Module]:
    """Return all modules alive that hold every parameter that an optimiser updates, the smallest ones first."""
    found = [one for one in gc.get_objects() if issubclass(type(one), nn.Module) and holds(one, optimizer)]
    return sorted(found, key=lambda module: sum(1 for _ in module.modules()))


def holds(module: nn.Module, optimizer: Optimizer) -> bool:
    """Return whether a module holds every parameter that the optimiser updates."""
    updated = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return bool(updated) and updated <= {id(p) for p in module.parameters()}
