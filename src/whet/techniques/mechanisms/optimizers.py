"""Put another optimiser in the place of a loop's own, so that schedules and the loop itself notice nothing else."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from whet.errors import RecipeError

OPTIMIZER = "optimizer"  # the group of techniques that choose the algorithm
GRADIENTS = "gradients"  # the group of those that decide when gradients are summed and used
WHOLE_GROUPS = "whole groups"  # the group of algorithms that count in their groups, and of what steps on copies of them
EARLY = "early"  # the group of those that cannot wait until all gradients are known to be finite, and that must

# What each algorithm keeps for a parameter. A checkpoint with anything else is another algorithm's.
_STATES = {
    "Adam": {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"},
    "AdamW": {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"},
    "AdamW8bit": {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"},
    "Adafactor": {"step", "row_var", "col_var", "variance"},
    "Lamb": {"exp_avg", "exp_avg_sq", "weight_norm", "adam_norm", "trust_ratio"},
    "MuonWithAdamW": {"step", "exp_avg", "exp_avg_sq", "momentum_buffer"},
    "SGD": {"momentum_buffer"},
    "Adagrad": {"step", "sum"},
}
_LEAST_NARROW = 4096  # numbers of a parameter from which on torchao keeps moments in 8 bits


def updates_one_by_one(optimizer: Optimizer) -> str:
    """Return why an optimiser may need several parameters at once; "" where it updates each by itself."""
    if not type(optimizer).__module__.startswith("torch.optim"):
        return f"{type(optimizer).__name__} may need all gradients at once"
    if type(optimizer).__name__ == "LBFGS":
        return "LBFGS needs all gradients at once"
    return ""


def needs_closure(optimizer: Optimizer) -> bool:
    """Return whether an optimiser's step computes the loss anew by itself, as that of LBFGS does."""
    given = inspect.signature(type(optimizer).step).parameters.get("closure")
    return given is not None and given.default is inspect.Parameter.empty


def loss_of(closure: Callable[[], Any] | None) -> Any:
    """Return what the closure of a step returns, which may go backward; None without a closure."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def replace_step(optimizer: Optimizer, make: Callable[[], object]) -> None:
    """Have an optimiser's step do something else, after its closure. Schedules take it as it is, and see each step."""

    def step(closure: Callable[[], Any] | None = None) -> Any:
        loss = loss_of(closure)
        make()
        optimizer._opt_called = True  # type: ignore[attr-defined]
        return loss

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.step = step  # type: ignore[method-assign]


def why_not_replaced(optimizer: Optimizer, *kinds: type[Optimizer]) -> str:
    """Return why another algorithm, which stands for `kinds`, cannot take an optimiser's place; "" where it can.

    A subclass may have another step, and is refused.
    """
    if type(optimizer) not in kinds:
        names = " and ".join(kind.__name__ for kind in kinds)
        return f"it stands for {names}; the optimiser is {type(optimizer).__name__}"
    if optimizer.state:
        return "the optimiser has a state already: change the algorithm before the first step"
    return ""


def replaced(
    optimizer: Optimizer, make: Callable[[list[dict[str, Any]]], Optimizer], names: frozenset[str]
) -> Optimizer:
    """Return another optimiser for the same groups of parameters.

    Its groups are the old optimiser's own dicts, with the new algorithm's settings added, so that a schedule made for
    the old one changes the new one's learning rate. Nothing must have been stepped yet.

    Args:
        names: The settings of a group that the new algorithm takes over.
    """
    groups = optimizer.param_groups
    made = make([{"params": group["params"], **{n: group[n] for n in names if n in group}} for group in groups])
    for mine, theirs in zip(groups, made.param_groups, strict=True):
        mine.update(theirs)
    made.param_groups = groups
    made.register_load_state_dict_post_hook(partial(_keep_groups, groups))
    optimizer._opt_called = True  # type: ignore[attr-defined]  # a schedule that was made for it would warn at each step
    return made


def _keep_groups(groups: list[dict[str, Any]], optimizer: Optimizer) -> None:
    """Put loaded settings into the groups that a schedule holds. torch puts new groups in their place."""
    for mine, loaded in zip(groups, optimizer.param_groups, strict=True):
        for name, value in loaded.items():
            if isinstance(mine.get(name), Tensor):
                mine[name].fill_(float(value))
            else:
                mine[name] = value
    optimizer.param_groups = groups


def guard_state(optimizer: Optimizer) -> None:
    """Have an optimiser refuse the checkpoint of another algorithm, which torch would load without a word."""
    if type(optimizer).__name__ in _STATES:
        optimizer.register_load_state_dict_pre_hook(_check_state)


def _check_state(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    """Raise RecipeError where a saved state is of another algorithm than the optimiser's."""
    name = type(optimizer).__name__
    settings = {key for group in saved["param_groups"] for key in group}
    missing = optimizer.defaults.keys() - settings - {"foreach", "fused", "maximize", "capturable", "differentiable"}
    found = {key for state in saved["state"].values() for key in state}
    other = sorted(found - _STATES[name]) or sorted(missing)
    if other:
        told = f"it {'holds' if found - _STATES[name] else 'lacks'} {', '.join(other)}"
    elif name == "MuonWithAdamW" and found and "momentum_buffer" not in found:
        told = "it lacks momentum_buffer"
    elif not _has_own_widths(optimizer, saved["state"]):
        told = "its moments are kept in another number of bits"
    else:
        return
    raise RecipeError(
        f"this checkpoint is of another optimiser than {name}: {told}; load one that the same recipe wrote, or "
        "train without the recipe's optimiser"
    )


def _has_own_widths(optimizer: Optimizer, states: dict[Any, dict[str, Any]]) -> bool:
    """Return whether the saved moments are as wide as the optimiser's: torchao's classes, or plain tensors."""
    moments = [state["exp_avg"] for state in states.values() if "exp_avg" in state]
    if type(optimizer).__name__ != "AdamW8bit":
        return not any(_is_narrow(x) for x in moments)
    size = optimizer.block_size  # type: ignore[attr-defined]
    return all(_is_narrow(x) for x in moments if x.numel() >= _LEAST_NARROW and x.numel() % size == 0)


def _is_narrow(moment: Tensor) -> bool:
    return type(getattr(moment, "_local_tensor", moment)).__module__.startswith("torchao")
