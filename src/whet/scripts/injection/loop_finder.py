"""Find the model and the optimiser of a training loop from inside its process, without being told of either.

Every optimiser is noted as it is made. The loop's model is the outermost module that is called in training mode and
holds every parameter of the optimiser. The moment is before that call, so that techniques can change the model in time.
Where the call comes from a closure, within the optimiser's step, the closure is called once before, up to that moment.
"""

import functools
import gc
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

import torch
from torch import nn
from torch.optim import Optimizer

from whet.core.workload.training import kept_generators
from whet.profiling.step.patching import Patches
from whet.scripts.injection.closures import Closure, closure_of
from whet.scripts.injection.lightning_modules import holds, lead_through_call, modules_that_hold
from whet.scripts.injection.loader_passes import LoaderPasses
from whet.techniques.mechanisms.parts import Parts, num_processes

OnFound = Callable[["FoundLoop"], None]

ONE_LOOP = "whet works on one model that one optimiser trains"
_DRAWS = "the closure of optimizer.step draws its batch itself; draw it before the step, and let the closure use it"
_SEVERAL = (
    "the script trains in several processes (torch.distributed), which it starts itself; start it as one process, or "
    "by torchrun"
)
_WRAPPERS = (("_orig_mod", "OptimizedModule"), ("module", "DataParallel"), ("module", "DistributedDataParallel"))
_FLATTENED = "FullyShardedDataParallel"


class _LoopFound(BaseException):
    """End the first call of a closure, which was made to find the loop."""


class FoundLoop:
    """Hold the parts of the loop that was found.

    Attributes:
        parts: The model, its optimiser, and the DataLoader that gave the latest batch; no batches where none did.
        passes: Puts other batches in the place of the loader's.
        is_compiled: Whether the script has compiled the model itself.
        is_called: Whether the script calls the model, and not only parts of it.
    """

    def __init__(
        self, outermost: nn.Module, optimizer: Optimizer, passes: LoaderPasses, *, is_called: bool = True
    ) -> None:
        model = outermost
        self.is_called = is_called
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
        probing: Returns a context for a call of a closure that only finds the loop.
        may_be_several: Whether this may be one of several processes that train together.
    """

    def __init__(
        self,
        on_found: OnFound,
        refuse: Callable[[str], NoReturn],
        probing: Callable[[], AbstractContextManager[object]] = nullcontext,
        *,
        may_be_several: bool = False,
    ) -> None:
        self._may_be_several = may_be_several
        self._probing = probing
        self.found: FoundLoop | None = None
        self._on_found = on_found
        self._refuse = refuse
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._called: dict[int, weakref.ref[nn.Module]] = {}
        self._making = Patches()
        self._calling = Patches()
        self._entered: set[type[Optimizer]] = set()
        self._is_probing = False
        self._passes = LoaderPasses()
        self._making.set(Optimizer, "__init__", self._noting(Optimizer.__init__))
        self._calling.set(nn.Module, "__call__", self._looking(nn.Module.__call__))

    def before_step(self, optimizer: Optimizer) -> None:
        """Find the loop at the optimiser's first step, if it is not found yet."""
        if self.found is not None:
            return
        called = self._models()
        model = next((module for module in called if holds(module, optimizer)), None)
        whole = None if model is not None else _whole_of(called, optimizer)
        if model is None and whole is not None:
            self._accept(whole, optimizer, is_called=False)
            return
        if model is None:
            kinds = ", ".join(dict.fromkeys(type(module).__name__ for module in called)) or "no module"
            self._refuse(
                f"the model cannot be recognised: {type(optimizer).__name__} updates parameters that no single module "
                f"holds ({kinds} called in training mode). {ONE_LOOP}; use whet.prepare in the script's own loop"
            )
        self._accept(model, optimizer)

    def _call(self, closure: Closure) -> None:
        """Call the closure to find the loop. Nothing is drawn or heard of it."""
        self._is_probing = True
        try:
            with self._probing(), kept_generators(), torch.enable_grad():
                closure()
        except _LoopFound:
            pass
        finally:
            self._is_probing = False

    def _models(self) -> list[nn.Module]:
        return [module for module in (ref() for ref in self._called.values()) if module is not None]

    def _noting(self, initialise: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(initialise)
        def noted(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            initialise(optimizer, *args, **kwargs)
            self._optimizers.append(weakref.ref(optimizer))
            kind = type(optimizer)
            if kind not in self._entered:
                self._entered.add(kind)
                self._making.set(kind, "step", self._entering(kind.step))

        return noted

    def _entering(self, step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(step)
        def entered(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            closure = closure_of(args, kwargs)
            if self.found is not None or closure is None:
                return step(optimizer, *args, **kwargs)
            self._probe(optimizer, closure)
            return optimizer.step(*args, **kwargs)  # a technique may have taken its place

        return entered

    def _probe(self, optimizer: Optimizer, closure: Closure) -> None:
        """Find the loop in a call of the closure, which ends where the model is called."""
        num_batches = self._passes.num_batches
        self._call(closure)
        if self.found is None and lead_through_call(_whole_of(self._models(), optimizer)):
            self._call(closure)
        if self._passes.num_batches != num_batches:
            self._refuse(_DRAWS)
        self.before_step(optimizer)

    def _looking(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def looked(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self.found is None and module.training and torch.is_grad_enabled():
                optimizer = next((one for one in self._alive() if holds(module, one)), None)
                if optimizer is not None:
                    self._accept(module, optimizer)
                    if self._is_probing:
                        raise _LoopFound
                    return type(module).__call__(module, *args, **kwargs)  # the call may have changed
                if next(module.parameters(), None) is not None:
                    self._called.setdefault(id(module), weakref.ref(module))
            return call(module, *args, **kwargs)

        return looked

    def _alive(self) -> list[Optimizer]:
        return [optimizer for optimizer in (ref() for ref in self._optimizers) if optimizer is not None]

    def _accept(self, model: nn.Module, optimizer: Optimizer, *, is_called: bool = True) -> None:
        others = [one for one in self._alive() if one is not optimizer]
        if others:
            gc.collect()
            others = [one for one in self._alive() if one is not optimizer]
        if others:
            self._refuse(f"the script has several optimisers ({_kinds([optimizer, *others])}). {ONE_LOOP}")
        if num_processes() > 1 and not self._may_be_several:
            self._refuse(_SEVERAL)
        if any(type(module).__name__ == _FLATTENED for module in model.modules()):
            self._refuse(
                f"{_FLATTENED} puts the parameters of the model into flat ones of its own; shard by fully_shard, which "
                "keeps them"
            )
        self.found = FoundLoop(model, optimizer, self._passes, is_called=is_called)
        self._calling.restore()
        self._making.restore()
        self._optimizers.clear()
        self._called.clear()
        self._on_found(self.found)


def _whole_of(called: Sequence[nn.Module], optimizer: Optimizer) -> nn.Module | None:
    """Return the smallest module that holds every parameter, and whose parts were called; None where there is none."""
    parts = {id(module) for module in called}
    wholes = (whole for whole in modules_that_hold(optimizer) if parts & {id(part) for part in whole.modules()})
    return next(wholes, None)


def _inside(module: nn.Module) -> nn.Module | None:
    """Return the module that a wrapper of PyTorch holds: torch.compile's or a data parallel one. None for others."""
    for name, kind in _WRAPPERS:
        inner = getattr(module, name, None)
        if type(module).__name__ == kind and isinstance(inner, nn.Module):
            return inner
    return None


def _kinds(things: Sequence[object]) -> str:
    return ", ".join(type(thing).__name__ for thing in things)
