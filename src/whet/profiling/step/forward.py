"""Time the forward passes of given models while a loop is watched, with a patch of the model's class.

With a hook on the model, PyTorch takes its slow path through a module's call, which costs 30 µs if the step has emptied
the caches. So the class gets the attribute that `Module.compile` gives a module, `_compiled_call_impl`. It times the
given models and lets all other instances of the class pass. Copies, pickles and replicas that are made meanwhile (an
EMA, a worker) are not timed. torch.compile does not look into it, and needs no recompilation.
"""

from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import torch
from torch import nn

from whet.profiling.step.patches import timed
from whet.profiling.step.patching import Patches
from whet.profiling.step.phases import Phase, PhaseClock

_FORWARD = int(Phase.FORWARD)
_IMPL = "_compiled_call_impl"


def patch_models(patches: Patches, clock: PhaseClock, models: Sequence[nn.Module]) -> None:
    by_class: dict[type[nn.Module], set[int]] = {}
    for model in models:
        compiled = vars(model).get(_IMPL)
        if compiled is not None:  # `Module.compile` has compiled it in place
            patches.set(model, _IMPL, timed(compiled, clock, Phase.FORWARD))
            continue
        for kind in (type(model), getattr(type(model), "cls_to_become", None)):  # a lazy module changes its class
            if kind is not None:
                by_class.setdefault(kind, set()).add(id(model))
    for kind, numbers in by_class.items():
        patches.set(kind, _IMPL, _TimedCall(vars(kind).get(_IMPL), clock, frozenset(numbers)))


class _TimedCall:
    """Time the calls of the instances with the ids `numbers`, as a method of their class. It is pickled as None.

    `before` is the method that another watch has put there, or None.
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

        self._call = torch.compiler.disable(call, recursive=False)  # the model's own code is still compiled

    def __get__(self, model: nn.Module | None, owner: object = None) -> Any:
        return self if model is None else MethodType(self._call, model)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()
