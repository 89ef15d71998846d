"""The forward passes of given models, timed while a loop is watched: by what stands in the model's class.

A hook on the model would put PyTorch on the long way through a module's call, which takes 30 µs where the step has
emptied the caches. So the class is given what `Module.compile` gives a module, a `_compiled_call_impl`: it times the
models that it is meant for and lets all others of the class pass. Copies, pickles and replicas made meanwhile (an EMA,
a worker) are their own. torch.compile does not look into it, and has nothing to compile again.
"""

from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import torch
from torch import nn

from whet.step_profiler.patches import Patches, timed
from whet.step_profiler.phases import Phase, PhaseClock

_FORWARD = int(Phase.FORWARD)
_IMPL = "_compiled_call_impl"


def patch_models(patches: Patches, clock: PhaseClock, models: Sequence[nn.Module]) -> None:
    """Time the calls of these modules."""
    by_class: dict[type[nn.Module], set[int]] = {}
    for model in models:
        compiled = vars(model).get(_IMPL)
        if compiled is not None:  # in place
            patches.set(model, _IMPL, timed(compiled, clock, Phase.FORWARD))
            continue
        for kind in (type(model), getattr(type(model), "cls_to_become", None)):  # a lazy module changes its class
            if kind is not None:
                by_class.setdefault(kind, set()).add(id(model))
    for kind, numbers in by_class.items():
        patches.set(kind, _IMPL, _TimedCall(vars(kind).get(_IMPL), clock, frozenset(numbers)))


class _TimedCall:
    """A method of a class that times the calls of some of its objects, known by their ids. Pickled, it is no method.

    before: what stood there, of another watch.
    """

    def __init__(self, before: Any, clock: PhaseClock, numbers: frozenset[int]) -> None:
        def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            run: Callable[..., Any] = self._call_impl if before is None else before.__get__(self)
            if id(self) not in numbers or not clock.enter(_FORWARD):
                return run(*args, **kwargs)
            try:
                return run(*args, **kwargs)
            finally:
                clock.leave()

        self._call = torch.compiler.disable(call, recursive=False)  # the model's own code is compiled as ever

    def __get__(self, model: nn.Module | None, owner: object = None) -> Any:
        return self if model is None else MethodType(self._call, model)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()
