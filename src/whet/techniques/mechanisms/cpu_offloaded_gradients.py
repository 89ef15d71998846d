"""Keep gradients in the host's memory from backward to the update, while p.grad goes on to be what a loop works with.

Backward's gradient is copied to the host as soon as it is there, and the GPU's memory is freed. In p.grad its place is
taken by a tensor that says it is on the GPU. What a loop does with it (clip, accumulate, unscale, set to zero, read) is
computed on the host, and what comes of it lies on the GPU again. So the update sees what the loop made of gradients.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from whet.techniques.mechanisms.host_copies import HostCopy

_HOST = torch.device("cpu")


class HostGradient(Tensor):
    """Stand for a tensor that lies in the host's memory as if it were on another device."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    _source: HostCopy | Tensor

    @staticmethod
    def __new__(cls, source: HostCopy | Tensor, device: torch.device) -> "HostGradient":
        like = source.buffer if isinstance(source, HostCopy) else source
        made: HostGradient = Tensor._make_wrapper_subclass(
            cls,
            like.shape,
            strides=like.stride(),
            storage_offset=like.storage_offset(),
            dtype=like.dtype,
            device=device,
            requires_grad=False,
        )
        made._source = source
        return made

    def numbers(self) -> Tensor:
        """Return the tensor in the host's memory, once it is complete."""
        return self._source.on_host() if isinstance(self._source, HostCopy) else self._source

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Compute an operator on the host. What draws random numbers is computed on the device, by its generator."""
        kwargs = dict(kwargs or {})
        if "non_blocking" in kwargs:  # the host's memory may be used again before such a copy has read it
            kwargs["non_blocking"] = False
        flat, spec = tree_flatten((list(args), kwargs))
        device: torch.device = next(x.device for x in flat if isinstance(x, HostGradient))
        place = device if torch.Tag.nondeterministic_seeded in func.tags else _HOST
        there = [_at(x, place) if isinstance(x, Tensor) else x for x in flat]
        their_args, their_kwargs = tree_unflatten(there, spec)
        result = func(*their_args, **their_kwargs)
        written = _written(func, args, kwargs)
        for x, y in zip(flat, there, strict=True):
            own = numbers_of(x) if isinstance(x, Tensor) else x
            if id(x) in written and own is not y:
                own.copy_(y)
        given = {id(y): x for x, y in zip(flat, there, strict=True) if isinstance(y, Tensor)}
        wanted = torch.device(kwargs.get("device") or device)

        def answer(y: Tensor) -> Tensor:
            if id(y) in given:
                return given[id(y)]  # type: ignore[no-any-return]
            return HostGradient(y, device) if func.is_view else y.to(wanted)

        return tree_map_only(Tensor, answer, result)

    def tolist(self) -> Any:
        return self.numbers().tolist()

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        """Take another tensor's numbers, dtype and device, as when a module is cast or moved."""
        made = HostGradient(numbers_of(value).to(_HOST), value.device)
        Tensor.data.__set__(self, made)  # type: ignore[attr-defined]
        self._source = made._source

    def __deepcopy__(self, memo: dict[int, Any]) -> "HostGradient":
        made = memo[id(self)] = HostGradient(self.numbers().clone(), self.device)
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.numbers().to(self.device, copy=True).__reduce_ex__(protocol)  # pickled, it is a plain tensor

    def __repr__(self) -> str:  # type: ignore[override]
        return f"HostGradient({self.numbers()!r}, device='{self.device}')"


def numbers_of(x: Tensor) -> Tensor:
    """Return the tensor that holds a gradient's numbers: the one in the host's memory, or the gradient itself."""
    return x.numbers() if isinstance(x, HostGradient) else x


def keep_gradients_on_host(parameters: Iterable[nn.Parameter], *, device_type: str = "cuda") -> None:
    """Have backward move gradients from such devices to the host's memory. Sparse ones and those with a graph stay."""
    for p in parameters:
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(partial(_move, device_type))


def _move(device_type: str, p: Tensor) -> None:
    gradient = p.grad
    if gradient is None or type(gradient) is not Tensor or gradient.device.type != device_type:
        return
    if gradient.layout is torch.strided and not gradient.requires_grad:
        p.grad = HostGradient(HostCopy(gradient), gradient.device)


def _at(x: Tensor, place: torch.device) -> Tensor:
    return numbers_of(x).to(place)


def _written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> set[int]:
    """Return the ids of the tensors that an operator writes to."""
    names = [argument.name for argument in func._schema.arguments]
    values = dict(zip(names, args, strict=False)) | dict(kwargs)
    written = [a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return {id(x) for name in written for x in tree_leaves(values.get(name)) if isinstance(x, Tensor)}
