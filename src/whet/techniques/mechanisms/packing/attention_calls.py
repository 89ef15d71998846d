"""Share what everything needs that takes the place of PyTorch's fused attention: autocast's casts, and masks.

Shape suffixes: R rows of a mask, B rows, H heads, T queries, S keys.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

FUSED = F.scaled_dot_product_attention  # as PyTorch calls it, whatever takes its place in torch.nn.functional later


class InPlaceOfFused(TorchFunctionMode):
    """Answer scaled_dot_product_attention by another function of its arguments, and leave all else as it is."""

    def __init__(self, answer: Callable[..., Tensor]) -> None:
        super().__init__()
        self._answer = answer

    def __torch_function__(
        self, function: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is FUSED:
            return self._answer(*args, **kwargs)
        if function is Tensor.unflatten and torch.compiler.is_compiling():
            # torch.compile cannot trace it as a function, since that calls super(). So it is called as a method.
            return args[0].unflatten(*args[1:], **kwargs)
        return function(*args, **kwargs)


def in_autocast(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values as the fused attention gets them: cast where autocast is on, but for float64."""
    kind = query.device.type
    if not torch.is_autocast_enabled(kind):
        return query, key, value
    dtype = torch.get_autocast_dtype(kind)
    cast = [x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in (query, key, value)]
    return cast[0], cast[1], cast[2]


def by_rows(mask: Tensor) -> Tensor:
    """Return a mask [T, S], [H, T, S] or [B, H, T, S] as [R, 1 or H, T, S]; equal rows and heads are there once."""
    mask = mask[(None,) * (4 - mask.dim())]
    for dim in (0, 1):
        if mask.stride(dim) == 0:
            mask = mask.narrow(dim, 0, 1)
    return mask


def bias_of(mask: Tensor | None, like: Tensor) -> Tensor | None:
    """Return a mask (True where a key is seen, or what is added) as a bias [1 or B, 1 or H, T, S] in `like`'s dtype."""
    if mask is None:
        return None
    mask = by_rows(mask)
    if mask.dtype is torch.bool:
        return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(~mask, -math.inf)
    return mask.to(like.dtype)
