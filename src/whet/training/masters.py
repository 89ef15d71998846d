"""Keep parameters in bfloat16, and update them in float32.

A float32 copy of such a parameter, its master, is what the optimiser updates, what checkpoints hold, and what is copied
or pickled. Without a master, an update smaller than 1/256 of the parameter would be lost. Stochastic rounding does
without masters: it rounds up or down by chance, so that small updates count on average.

During an update the parameter's data is a float32 tensor. So the optimiser keeps its state in float32 and needs no
change, as long as it updates each parameter by itself.
"""

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from whet.training.module_class import AddedForward, extend

_MASTER = "_whet_master"  # of a parameter: its float32 copy, an nn.Parameter
_HAS_NONE = "_whet_has_no_master"  # of a parameter in bfloat16 that is rounded by chance
_CHUNK_BYTES = 64 * 2**20  # of float32 gradients that are in memory at a time


def has_master(p: Tensor) -> bool:
    """Return whether a parameter has a float32 copy beside it."""
    return hasattr(p, _MASTER)


def value_of(p: Tensor) -> Tensor:
    """Return a parameter's value: its master where it has one and is bfloat16 now, otherwise the parameter itself."""
    return _master(p).detach() if has_master(p) and p.dtype is torch.bfloat16 else p.detach()


@torch.no_grad()
def _master(p: Tensor) -> nn.Parameter:
    """Return a parameter's master, with what others wrote to the parameter since its last update."""
    master: nn.Parameter = getattr(p, _MASTER)
    if master.device != p.device:
        master.data = master.data.to(p.device)
    rounded = master.to(p.dtype)
    if p.is_cuda or not torch.equal(rounded, p):  # to ask a GPU would mean to wait for it
        master.copy_(torch.where(rounded == p, master, p.float()))
    return master


def _as_float32(p: nn.Parameter) -> nn.Parameter:
    """Return a float32 parameter that stands for one in bfloat16 in copies and pickles; the same one each time."""
    if p.dtype is not torch.bfloat16 or not (has_master(p) or hasattr(p, _HAS_NONE)):
        return p
    if has_master(p):
        master = _master(p)
        master.requires_grad = p.requires_grad
        return master
    known: tuple[int, nn.Parameter] | None = getattr(p, _HAS_NONE)
    if known is None or known[0] != p._version:
        known = (p._version, nn.Parameter(p.detach().float(), p.requires_grad))
        setattr(p, _HAS_NONE, known)
    return known[1]


class HoldsMasters(AddedForward):
    """Save, load, copy and pickle the float32 values of parameters that are bfloat16."""

    def _save_to_state_dict(self: Any, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)  # type: ignore[misc]
        for name, p in self._parameters.items():
            if p is not None and prefix + name in destination:
                whole = _as_float32(p)
                destination[prefix + name] = whole if keep_vars else whole.detach()

    def _load_from_state_dict(self: Any, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)  # type: ignore[misc]
        for name, p in self._parameters.items():
            value = state_dict.get(prefix + name)
            if p is not None and has_master(p) and isinstance(value, Tensor) and value.shape == p.shape:
                with torch.no_grad():
                    getattr(p, _MASTER).copy_(value)

    def __getstate__(self: Any) -> Any:
        """Return the module's attributes, with float32 parameters."""
        state: Any = super().__getstate__()
        parameters = {name: p if p is None else _as_float32(p) for name, p in self._parameters.items()}
        return {**state, "_parameters": parameters}


def keep_in_bfloat16(
    model: nn.Module, optimizer: Optimizer, parameters: Sequence[nn.Parameter], *, by_chance: bool = False
) -> None:
    """Make parameters bfloat16, and have the optimiser update them in float32. They stay the objects that they are.

    Args:
        model: The model that holds them.
        optimizer: The optimiser that updates them. It must update each parameter by itself.
        parameters: Parameters in float32.
        by_chance: Whether to do without masters and round each update up or down by chance.
    """
    chosen = {id(p) for p in parameters}
    for module in list(model.modules()):
        if any(id(p) in chosen for p in module._parameters.values()):
            extend(module, HoldsMasters)
    for p in parameters:
        gradient, p.grad = p.grad, None
        if by_chance:
            setattr(p, _HAS_NONE, None)
        else:
            setattr(p, _MASTER, nn.Parameter(p.data, p.requires_grad))
        p.data = p.data.bfloat16()
        p.grad = None if gradient is None else gradient.bfloat16()
    _UpdatesInFloat32(optimizer).install()


class _UpdatesInFloat32:
    """Make an optimiser see float32 while it updates or loads."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._update, self._load = optimizer.step, optimizer.load_state_dict
        self._generators: dict[torch.device, torch.Generator] = {}

    def install(self) -> None:
        """Take the places of the optimiser's step and of its load_state_dict."""
        step = partial(self._step)
        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # schedules then take it as it is
        self._optimizer.step = step  # type: ignore[method-assign]
        self._optimizer.load_state_dict = self._load_state_dict  # type: ignore[method-assign]

    def _step(self, closure: Any = None) -> Any:
        """Update all parameters, some at a time, so that few float32 gradients are in memory at once."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        optimizer = self._optimizer
        groups = optimizer.param_groups
        try:
            for group in groups:
                for chunk in _chunks(group["params"]):
                    optimizer.param_groups = [{**group, "params": chunk}]
                    with self._in_float32([p for p in chunk if p.grad is not None]):
                        self._update()
        finally:
            optimizer.param_groups = groups
        optimizer._opt_called = True  # type: ignore[attr-defined]
        return loss

    def _load_state_dict(self, state_dict: Any) -> None:
        """Load the optimiser's state, which would be cast to the parameters' dtype, in float32."""
        with self._in_float32([p for group in self._optimizer.param_groups for p in group["params"]]):
            self._load(state_dict)

    @contextlib.contextmanager
    def _in_float32(self, parameters: Sequence[nn.Parameter]) -> Iterator[None]:
        """Give parameters and their gradients float32 data in the block, and write what came of it back."""
        kept = []
        for p in parameters:
            if p.dtype is torch.bfloat16 and (has_master(p) or hasattr(p, _HAS_NONE)):
                low, gradient = p.data, p.grad
                whole = _master(p).data if has_master(p) else low.float()
                _exchange(p, whole, None if gradient is None else gradient.float())
                kept.append((p, low, gradient, whole))
        try:
            yield
        finally:
            while kept:
                p, low, gradient, whole = kept.pop()
                if p.data.data_ptr() != whole.data_ptr():  # the optimiser gave it another tensor
                    whole.copy_(p.data)
                _exchange(p, low, gradient)
                with torch.no_grad():  # written to the parameter itself, so that autograd sees a change
                    p.copy_(whole if has_master(p) else self._rounded(whole))
                if not has_master(p):
                    setattr(p, _HAS_NONE, None)

    def _rounded(self, x: Tensor) -> Tensor:
        if x.device not in self._generators:  # one of its own: dropout and the data draw what they drew before
            self._generators[x.device] = torch.Generator(x.device).manual_seed(torch.initial_seed())
        return stochastically_rounded(x, self._generators[x.device])


def _exchange(p: nn.Parameter, data: Tensor, gradient: Tensor | None) -> None:
    """Give a parameter other data and another gradient, of one dtype."""
    p.grad = None
    p.data = data
    p.grad = gradient


def _chunks(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Yield parameters in their order, so many at a time that their gradients take about 64 MB in float32."""
    chunk: list[nn.Parameter] = []
    size = 0
    for p in parameters:
        if chunk and size + 4 * p.numel() > _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(p)
        size += 4 * p.numel()
    if chunk:
        yield chunk


def stochastically_rounded(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return float32 numbers in bfloat16, rounded up or down with odds that make the result right on average."""
    noise = torch.randint(0, 2**16, x.shape, dtype=torch.int32, device=x.device, generator=generator)
    rounded = ((x.view(torch.int32) + noise) & -(2**16)).view(torch.float32)
    return torch.where(x.isfinite(), rounded, x).bfloat16()
