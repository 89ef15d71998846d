"""Find the model and the optimiser of a training loop from inside its process, without being told of either.

Every optimiser is noted as it is made. The loop's model is the outermost module that is called in training mode and
holds every parameter of the optimiser. The moment is before that call, so that techniques can change the model in time.
"""

import functools
import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import nn
from torch.optim import Optimizer

from whet.scripts.loader_passes import LoaderPasses
from whet.step_profiler.patches import Patches
from whet.training.parts import Parts

OnFound = Callable[["FoundLoop"], None]

ONE_LOOP = "whet works on one model that one optimiser trains"


class FoundLoop:
    """Hold the parts of the loop that was found.

    Attributes:
        parts: The model, its optimiser, and the DataLoader that gave the latest batch; no batches where none did.
        passes: Puts other batches in the place of the loader's.
        is_compiled: Whether the script has compiled the model itself.
        is_autocast: Whether the script computes in autocast.
    """

    def __init__(self, outermost: nn.Module, optimizer: Optimizer, passes: LoaderPasses) -> None:
        model = outermost
        self.is_compiled = False
        while (inner := _inside(model)) is not None:
            self.is_compiled |= type(model).__name__ == "OptimizedModule"
            model = inner
        self.is_compiled |= vars(model).get("_compiled_call_impl") is not None
        self.passes = passes
        self.parts = Parts(model, optimizer, passes.loader or ())
        self.is_autocast = torch.is_autocast_enabled(self.parts.device_type)

    @property
    def trained(self) -> list[tuple[str, nn.Parameter]]:
        """Return the parameters that the optimiser updates, with their names in the model."""
        updated = {id(p) for group in self.parts.optimizer.param_groups for p in group["params"]}
        return [(name, p) for name, p in self.parts.model.named_parameters() if p.requires_grad and id(p) in updated]


class LoopFinder:
    """Watch optimisers and modules until the loop is found.

    Args:
        on_found: Called once, before the model's first call in training mode, or before the optimiser's first step
            where the optimiser is made after that call.
        refuse: Ends the process with the reason where the loop cannot be recognised.
    """

    def __init__(self, on_found: OnFound, refuse: Callable[[str], NoReturn]) -> None:
        self.found: FoundLoop | None = None
        self._on_found = on_found
        self._refuse = refuse
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._called: dict[int, weakref.ref[nn.Module]] = {}
        self._making = Patches()
        self._calling = Patches()
        self._passes = LoaderPasses()
        self._making.set(Optimizer, "__init__", self._noting(Optimizer.__init__))
        self._calling.set(nn.Module, "__call__", self._looking(nn.Module.__call__))

    def before_step(self, optimizer: Optimizer) -> None:
        """Find the loop at the optimiser's first step, if it is not found yet."""
        if self.found is not None:
            return
        called = [module for module in (ref() for ref in self._called.values()) if module is not None]
        model = next((module for module in called if _holds(module, optimizer)), None)
        if model is None:
            kinds = ", ".join(dict.fromkeys(type(module).__name__ for module in called)) or "no module"
            self._refuse(
                f"the model cannot be recognised: {type(optimizer).__name__} updates parameters that no single module "
                f"holds ({kinds} called in training mode). {ONE_LOOP}; use whet.prepare in the script's own loop"
            )
        self._accept(model, optimizer)

    def _noting(self, initialise: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(initialise)
        def noted(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            initialise(optimizer, *args, **kwargs)
            self._optimizers.append(weakref.ref(optimizer))

        return noted

    def _looking(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def looked(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self.found is None and module.training and torch.is_grad_enabled():
                optimizer = next((one for one in self._alive() if _holds(module, one)), None)
                if optimizer is not None:
                    self._accept(module, optimizer)
                    return type(module).__call__(module, *args, **kwargs)  # the call may have changed
                if next(module.parameters(), None) is not None:
                    self._called.setdefault(id(module), weakref.ref(module))
            return call(module, *args, **kwargs)

        return looked

    def _alive(self) -> list[Optimizer]:
        return [optimizer for optimizer in (ref() for ref in self._optimizers) if optimizer is not None]

    def _accept(self, model: nn.Module, optimizer: Optimizer) -> None:
        others = [one for one in self._alive() if one is not optimizer]
        if others:
            gc.collect()
            others = [one for one in self._alive() if one is not optimizer]
        if others:
            self._refuse(f"the script has several optimisers ({_kinds([optimizer, *others])}). {ONE_LOOP}")
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            self._refuse("the script trains in several processes (torch.distributed); start it as one process")
        self.found = FoundLoop(model, optimizer, self._passes)
        self._calling.restore()
        self._making.restore()
        self._optimizers.clear()
        self._called.clear()
        self._on_found(self.found)


def _holds(module: nn.Module, optimizer: Optimizer) -> bool:
    """Return whether a module holds every parameter that the optimiser updates."""
    updated = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return bool(updated) and updated <= {id(p) for p in module.parameters()}


def _inside(module: nn.Module) -> nn.Module | None:
    """Return the module that a wrapper of PyTorch holds: torch.compile's or DataParallel's. None for other modules."""
    for name, kind in (("_orig_mod", "OptimizedModule"), ("module", "DataParallel")):
        inner = getattr(module, name, None)
        if type(module).__name__ == kind and isinstance(inner, nn.Module):
            return inner
    return None


def _kinds(things: Sequence[object]) -> str:
    return ", ".join(type(thing).__name__ for thing in things)
