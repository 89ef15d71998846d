"""Logits that are not computed before it is known what becomes of them.

The last layer of a language model returns a promise in place of its logits [..., V]. Casts and reshapes of it stay
promises. Cross-entropy of a promise is computed chunk by chunk, so that the whole logits are never in memory. For
anything else the logits are computed, as the layer would have done.

Shape suffixes: N rows, D width, V vocabulary.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from whet.techniques.mechanisms.chunked_cross_entropy import chunked_cross_entropy

_RESHAPES = {Tensor.view, Tensor.reshape, Tensor.flatten, torch.flatten, torch.reshape}
_SAME = {Tensor.contiguous, Tensor.requires_grad_}
_CASTS = {Tensor.float, Tensor.to}
_NO_DATA = ("shape", "size", "dim", "ndim", "dtype", "device", "numel", "is_floating_point", "requires_grad", "stride")


class DeferredLogits(Tensor):
    """Stand for the logits x W^T + b of some rows.

    Attributes:
        x_ND: The layer's input, with all leading dimensions.
        rows_dtype: The dtype that the layer would have computed in.
        versions: How often input and weight had been written to when the promise was made.
    """

    x_ND: Tensor
    weight_VD: Tensor
    bias_V: Tensor | None
    rows_dtype: torch.dtype
    versions: tuple[int, int]

    @staticmethod
    def __new__(
        cls, x_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, dtype: torch.dtype, rows_dtype: torch.dtype
    ) -> "DeferredLogits":
        """Make a promise with the dtype that it shows, and the dtype of the products."""
        made: DeferredLogits = Tensor._make_wrapper_subclass(
            cls, (*x_ND.shape[:-1], len(weight_VD)), dtype=dtype, device=x_ND.device, requires_grad=False
        )
        made.x_ND, made.weight_VD, made.bias_V, made.rows_dtype = x_ND, weight_VD, bias_V, rows_dtype
        made.versions = (x_ND._version, weight_VD._version)
        return made

    def computed(self) -> Tensor:
        """Compute the logits after all, with gradients.

        Raises:
            RuntimeError: The input or the weight has changed meanwhile, so that these would be other logits.
        """
        if self.versions != (self.x_ND._version, self.weight_VD._version):
            raise RuntimeError(
                "the logits were not computed while the weights were those of this step; use them before "
                "optimizer.step(), or leave chunked_loss out of the recipe"
            )
        with torch.autocast(self.x_ND.device.type, enabled=False):
            dtype = self.rows_dtype
            bias = None if self.bias_V is None else self.bias_V.to(dtype)
            return F.linear(self.x_ND.to(dtype), self.weight_VD.to(dtype), bias).to(self.dtype)

    def like(self, x_ND: Tensor | None = None, dtype: torch.dtype | None = None) -> "DeferredLogits":
        """Return the promise for other rows, or with another dtype."""
        x_ND = self.x_ND if x_ND is None else x_ND
        made = DeferredLogits(x_ND, self.weight_VD, self.bias_V, dtype or self.dtype, self.rows_dtype)
        made.versions = (x_ND._version, self.versions[1])
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"DeferredLogits(shape={tuple(self.shape)}, dtype={self.dtype})"

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Answer a call without the logits where that is possible."""
        kwargs = dict(kwargs or {})
        if _asks_for_no_data(function):
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **kwargs)
        if _writes(function):
            raise RuntimeError(
                f"{function.__name__} would change logits that are not computed; leave chunked_loss out of the recipe"
            )
        if args and isinstance(args[0], DeferredLogits):
            answer = _without_logits(function, args[0], args[1:], kwargs)
            if answer is not NotImplemented:
                return answer
        return function(*map(_real, args), **{name: _real(value) for name, value in kwargs.items()})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Refuse an operator that came past __torch_function__: computed here, logits would have no gradient."""
        raise RuntimeError(f"{func} came to logits that are not computed; leave chunked_loss out of the recipe")


def _asks_for_no_data(function: Callable[..., Any]) -> bool:
    owner = getattr(function, "__self__", None)  # the property, for its getter
    return getattr(owner, "__name__", getattr(function, "__name__", "")) in _NO_DATA


def _writes(function: Callable[..., Any]) -> bool:
    """Return whether a function changes its tensor: its name ends in one underscore."""
    name = getattr(function, "__name__", "")
    is_in_place = name.endswith("_") and not name.endswith("__")
    return name == "__setitem__" or (is_in_place and function is not Tensor.requires_grad_)


def _real(value: Any) -> Any:
    if isinstance(value, DeferredLogits):
        return value.computed()
    return type(value)(map(_real, value)) if type(value) in (list, tuple) else value


def _without_logits(
    function: Callable[..., Any], promise: DeferredLogits, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """Return another promise or a loss; NotImplemented where the logits are needed."""
    if function in _SAME:
        return promise
    if function in _CASTS:
        dtype = _cast_to(function, promise, args, kwargs)
        return NotImplemented if dtype is None else promise.like(dtype=dtype)
    if function in _RESHAPES:
        with torch._C.DisableTorchFunctionSubclass():
            shape = function(torch.empty(promise.shape, device="meta"), *args, **kwargs).shape
        if not shape or shape[-1] != promise.shape[-1]:
            return NotImplemented
        return promise.like(promise.x_ND.reshape(*shape[:-1], promise.x_ND.shape[-1]))
    if function is Tensor.__getitem__:
        return _indexed(promise, args[0])
    if function is F.cross_entropy:
        return _cross_entropy(promise, *args, **kwargs)
    return NotImplemented


def _cast_to(function: Any, promise: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.dtype | None:
    """Return the dtype that a cast leads to; None where it also does something else."""
    if function is Tensor.float:
        return torch.float32
    wanted = [*args, *kwargs.values()]
    if len(wanted) != 1:
        return None
    if isinstance(wanted[0], torch.dtype) and wanted[0].is_floating_point:
        return wanted[0]
    is_here = isinstance(wanted[0], str | torch.device) and torch.device(wanted[0]) == promise.device
    return promise.dtype if is_here else None


def _indexed(promise: DeferredLogits, index: Any) -> Any:
    """Return the promise for some rows, where the index leaves the vocabulary alone."""
    parts = index if isinstance(index, tuple) else (index,)
    if Ellipsis in [part for part in parts if not isinstance(part, Tensor)]:
        place = next(i for i, part in enumerate(parts) if part is Ellipsis)
        missing = promise.dim() - len(parts) + 1
        parts = (*parts[:place], *[slice(None)] * missing, *parts[place + 1 :])
    if len(parts) == promise.dim():
        if parts[-1] != slice(None):
            return NotImplemented
        parts = parts[:-1]
    if not all(isinstance(part, slice | int) for part in parts):
        return NotImplemented
    return promise.like(promise.x_ND[parts])


def _cross_entropy(
    promise: DeferredLogits,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """Return the cross-entropy chunk by chunk; NotImplemented for what is rarely used."""
    is_plain = weight is None and size_average is None and reduce is None and reduction in ("mean", "sum")
    is_usual = target.dtype is torch.int64 and target.shape == promise.shape[:1] and 0 <= label_smoothing <= 1
    if not is_plain or not is_usual or promise.dim() != 2:
        return NotImplemented
    scale: float = 1.0
    num_kept = (target != ignore_index).sum() if reduction == "mean" else None
    # Reading the number on a GPU would wait for it. In float16, the gradient of a mean vanishes before a loss scale
    # comes in backward.
    if num_kept is not None and num_kept.device.type == "cpu" and promise.rows_dtype is not torch.float16:
        scale, num_kept = 1.0 / int(num_kept) if num_kept else math.nan, None
    loss = chunked_cross_entropy(
        promise.x_ND,
        promise.weight_VD,
        promise.bias_V,
        target,
        ignore_index=ignore_index,
        dtype=promise.rows_dtype,
        smoothing=label_smoothing,
        scale=scale,
    )
    if num_kept is not None:
        loss = loss / num_kept
    return loss if promise.dtype is torch.float32 else loss.to(promise.dtype)
