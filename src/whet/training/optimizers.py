"""Put another optimiser in the place of a loop's own, so that schedules and the loop itself notice nothing else."""

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

OPTIMIZER = "optimizer"  # the group of techniques that choose the algorithm


def updates_one_by_one(optimizer: Optimizer) -> str:
    """Return why an optimiser may need several parameters at once; "" where it updates each by itself."""
    if not type(optimizer).__module__.startswith("torch.optim"):
        return f"{type(optimizer).__name__} may need all gradients at once"
    if type(optimizer).__name__ == "LBFGS":
        return "LBFGS needs all gradients at once"
    return ""


def why_not_replaced(optimizer: Optimizer, *kinds: type[Optimizer]) -> str:
    """Return why another algorithm cannot take an optimiser's place; "" where it can.

    Args:
        optimizer: The loop's own.
        kinds: The classes that the algorithm stands for. A subclass may have another step.
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
        optimizer: The loop's own.
        make: Makes the new one from groups of parameters.
        names: The settings of a group that the new algorithm takes over.
    """
    groups = optimizer.param_groups
    made = make([{"params": group["params"], **{n: group[n] for n in names if n in group}} for group in groups])
    for mine, theirs in zip(groups, made.param_groups, strict=True):
        mine.update(theirs)
    made.param_groups = groups
    optimizer._opt_called = True  # type: ignore[attr-defined]  # a schedule that was made for it would warn at each step
    return made
