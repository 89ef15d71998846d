"""Keep parameters in bfloat16, and update them in float32.

A float32 copy of such a parameter, its master, is what the optimiser updates, what checkpoints hold, and what is copied
or pickled. Without a master, an update smaller than 1/256 of the parameter would be lost. Stochastic rounding does
without masters: it rounds up or down by chance, so that small updates count on average.

During an update the parameter's data is a float32 tensor, so that the optimiser keeps its state in float32.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from whet.kernels.stochastic_rounding import rounded_stochastically
from whet.techniques.mechanisms.module_class import AddedForward, extend
from whet.techniques.mechanisms.optimizer_wrapper import ExchangedUpdates

_MASTER = "_whet_master"  # of a parameter: its float32 copy, an nn.Parameter
_SAVED = "whet_chance_rounding"  # of an optimiser's state_dict: the states of the generators, by device
_HAS_NONE = "_whet_has_no_master"  # of a parameter in bfloat16 that is rounded by chance


def has_master(p: Tensor) -> bool:
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
    _UpdatesInFloat32(optimizer)


class _UpdatesInFloat32(ExchangedUpdates):
    """Have an optimiser update masters, or float32 values that are rounded by chance."""

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__(optimizer)
        self._generators: dict[torch.device, torch.Generator] = {}

    def is_exchanged(self, p: nn.Parameter) -> bool:
        return p.dtype is torch.bfloat16 and (has_master(p) or hasattr(p, _HAS_NONE))

    def lent(self, p: nn.Parameter) -> Tensor:
        return _master(p).data if has_master(p) else p.data.float()

    def write_back(self, p: nn.Parameter, updated: Tensor) -> None:
        """Round the updated value to the parameter itself, so that autograd sees a change."""
        if not has_master(p):
            setattr(p, _HAS_NONE, None)
            p.copy_(self._rounded(updated))
            return
        master = getattr(p, _MASTER)
        if updated.data_ptr() != master.data_ptr():  # the optimiser gave the parameter another tensor
            master.copy_(updated)
        p.copy_(updated)

    def own_state(self) -> dict[str, Any]:
        """Return the states of the generators, so that a resumed training rounds as it would have rounded."""
        if not self._generators:
            return {}
        return {_SAVED: {str(device): generator.get_state() for device, generator in self._generators.items()}}

    def load_own_state(self, saved: Mapping[str, Any]) -> None:
        """Restore the generators. Without saved ones they begin anew."""
        self._generators = {}
        for name, state in saved.get(_SAVED, {}).items():
            if torch.device(name).type == "cuda" and not torch.cuda.is_available():
                warnings.warn(
                    f"the generator of stochastic rounding on {name} was not restored: PyTorch sees no GPU here, so "
                    "that updates are rounded by other numbers than they would have been",
                    stacklevel=2,
                )
                continue
            generator = torch.Generator(name)
            generator.set_state(state.cpu())
            self._generators[torch.device(name)] = generator

    def _rounded(self, x: Tensor) -> Tensor:
        if x.device not in self._generators:  # one of its own: dropout and the data draw what they drew before
            self._generators[x.device] = torch.Generator(x.device).manual_seed(torch.initial_seed())
        return rounded_stochastically(x, self._generators[x.device])
