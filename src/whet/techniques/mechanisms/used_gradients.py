"""Stand in for gradients that an update in backward has used, and refuse whatever needs their numbers.

A loop that clips, unscales, reads or adds up gradients would otherwise go on without them and train another model. What
stands in p.grad has the gradient's shape, dtype and device but no memory, so that each such use ends in one error, by
whichever function or library it comes. zero_grad takes it away, as it takes any gradient.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from whet.errors import RecipeError

_ADDS = ("add", "_foreach_add")
_KEEPS = ("detach", "alias", "_to_copy")  # what moving a model or listing its gradients calls


class UsedGradient(Tensor):
    """Hold the place of a gradient that is gone."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    _of: Any
    _technique: str

    @staticmethod
    def __new__(cls, p: Tensor, technique: str) -> "UsedGradient":
        made: UsedGradient = Tensor._make_wrapper_subclass(
            cls, p.shape, strides=p.stride(), dtype=p.dtype, device=p.device, requires_grad=False
        )
        made._of, made._technique = ref(p), technique
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Take the stand-in away where it is set to zero, and refuse what needs its numbers."""
        name = func._schema.name.removeprefix("aten::")
        found = [x for x in tree_leaves((args, kwargs)) if isinstance(x, UsedGradient)]
        if name in ("zero_", "_foreach_zero_"):
            for one in found:
                if (p := one._of()) is not None:
                    p.grad = None
            return args[0] if name == "zero_" else None
        if name in _KEEPS:
            chosen = {key: (kwargs or {}).get(key) or getattr(found[0], key) for key in ("dtype", "device")}
            made = UsedGradient(torch.empty_strided(found[0].shape, found[0].stride(), **chosen), found[0]._technique)
            made._of = found[0]._of
            return made
        is_added_to = name.rstrip("_") in _ADDS and isinstance(tree_leaves(args)[0], UsedGradient)
        raise RecipeError(_told(found[0]._technique, adds=is_added_to))

    def __repr__(self) -> str:  # type: ignore[override]
        return f"UsedGradient({self._technique}, shape={tuple(self.shape)})"


def _told(technique: str, *, adds: bool) -> str:
    if adds:
        return (
            "the loop calls backward twice before it sets gradients to zero, so that they add up (accumulation), but "
            f"{technique} has used the first ones already; leave it out of the recipe, or make each batch a step"
        )
    return (
        f"the loop works with a gradient (it clips, unscales, sums or reads it) that {technique} has used in backward "
        "already and freed; leave it out of the recipe, or the clipping, the scaler or the reading out of the loop"
    )


class UsedGradients:
    """Put stand-ins into the places of parameters' gradients. Each parameter has one, made once."""

    def __init__(self, technique: str) -> None:
        self._technique = technique
        self._known: dict[int, UsedGradient] = {}
        self._is_any = False

    def put(self, p: nn.Parameter) -> None:
        """Take a parameter's gradient away, and leave the stand-in."""
        known = self._known.get(id(p))
        if known is None or known.dtype is not p.dtype or known.device != p.device or known.shape != p.shape:
            known = self._known[id(p)] = UsedGradient(p, self._technique)
        p.grad = known
        self._is_any = True

    def taken(self) -> bool:
        """Return whether any gradient was taken away since the last call."""
        was, self._is_any = self._is_any, False
        return was
