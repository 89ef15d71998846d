"""The forward passes of given models, timed while a loop is watched: by the model's class, or by hooks on the model.

A hook puts PyTorch on the long way through a module's call, which takes 30 µs where the step has emptied the caches. So
the class of the model is given what `Module.compile` gives a module, a `_compiled_call_impl`, that times the model it
is meant for and lets all others of the class pass: copies, pickles and replicas of it made meanwhile (an EMA, a worker)
are their own. Code that torch.compile has compiled may be guarded by that attribute and would be compiled again; where
anything was compiled in this process, and the model is not what torch.compile returned, hooks it is.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.compiler import is_dynamo_compiling as is_compiling

from whet.steps.patches import Patches, timed
from whet.steps.phases import Phase, PhaseClock

_FORWARD = int(Phase.FORWARD)
_IMPL = "_compiled_call_impl"


def patch_models(patches: Patches, clock: PhaseClock, models: Sequence[nn.Module]) -> None:
    """Time the calls of these modules."""
    by_class: dict[type[nn.Module], set[int]] = {}
    for model in models:
        compiled = vars(model).get(_IMPL)
        if compiled is not None:  # in place: hooks would be compiled with it
            patches.set(model, _IMPL, timed(compiled, clock, Phase.FORWARD))
        elif hasattr(model, "_orig_mod") or not _has_compiled():
            by_class.setdefault(type(model), set()).add(id(model))
        else:
            running: list[bool] = []  # for each call that runs, whether it is timed
            patches.add_handle(model.register_forward_pre_hook(_BeforeForward(clock, running), prepend=True))
            patches.add_handle(model.register_forward_hook(_AfterForward(clock, running), always_call=True))
    for kind, numbers in by_class.items():
        patches.set(kind, _IMPL, _timed_of_class(getattr(kind, _IMPL), clock, frozenset(numbers)))


def _timed_of_class(before: Callable[..., Any] | None, clock: PhaseClock, numbers: frozenset[int]) -> Any:
    """A method that times the calls of some of a class's objects, known by their ids. before: of another watch."""

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        run = self._call_impl if before is None else before.__get__(self)
        if is_compiling() or id(self) not in numbers or not clock.enter(_FORWARD):
            return run(*args, **kwargs)
        try:
            return run(*args, **kwargs)
        finally:
            clock.leave()

    return call


def _has_compiled() -> bool:
    """Whether torch.compile has compiled anything in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["frames"])


class _BeforeForward:
    """A hook that copies and pickles of the model do not take along. Calls nest where a module calls itself."""

    def __init__(self, clock: PhaseClock, running: list[bool]) -> None:
        self._clock = clock
        self._running = running

    def __call__(self, *args: Any) -> None:
        clock = self._clock
        if is_compiling() or not clock.is_mine():
            return
        self._running.append(clock.enter(_FORWARD))

    def __reduce__(self) -> tuple[Any, ...]:
        return _nothing, ()


class _AfterForward(_BeforeForward):
    def __call__(self, *args: Any) -> None:
        if is_compiling() or not self._clock.is_mine():
            return
        if self._running and self._running.pop():
            self._clock.leave()


def _nothing() -> Callable[..., None]:
    """A hook that does nothing."""
    return _ignore


def _ignore(*args: Any) -> None:
    return None
