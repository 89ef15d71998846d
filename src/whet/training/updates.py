"""Prove that a changed loop updates its parameters as the original's optimiser would, against float64.

The first steps of the loop are made, and the gradients that each update saw are given to the workload's own optimiser
with its own schedule, on copies of the parameters in float64. That sees what gradients and losses do not: another
learning rate, a lost weight decay, an update that rounds away.
"""

from typing import Any

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn
from torch.optim import Optimizer

from whet.training.masters import value_of
from whet.workload.training import Trainer, TrainingWorkload

NUM_STEPS = 3
_LEAST_ERROR = 1e-3  # of an update: float32 parameters are 1e4 times as large as a small update, and rounded to 6e-8


class UpdateProof(BaseModel):
    """Say how the updates of a changed loop compare with those of the original's optimiser in float64.

    Attributes:
        is_same: Whether they are the same, rounding aside; None where they cannot be compared.
        words: The result in words.
        error: The largest relative error of any parameter's change over the steps.
        parameter: The parameter that is furthest off.
    """

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

    is_same: bool | None
    words: str
    error: float = 0.0
    parameter: str = ""


def prove_updates(workload: TrainingWorkload, trainer: Trainer, *, num_steps: int = NUM_STEPS) -> UpdateProof:
    """Make the first steps of a loop, and judge how they change the parameters.

    Args:
        workload: The original's description, which makes the reference's optimiser and schedule.
        trainer: The loop, before its first step.
        num_steps: How many steps are made.
    """
    parameters = [(name, p) for name, p in trainer.model.named_parameters() if p.requires_grad]
    precise = [nn.Parameter(value_of(p).double().clone()) for _, p in parameters]
    begin = [p.detach().clone() for p in precise]
    twins = {id(p): twin for twin, (_, p) in zip(precise, parameters, strict=True)}
    optimizer = workload.optimizer(workload.model.parameters())
    for group in optimizer.param_groups:
        if any(p.requires_grad and id(p) not in twins for p in group["params"]):
            return UpdateProof(is_same=None, words="updates cannot be compared: the optimiser has other parameters")
        group["params"] = [twins[id(p)] for p in group["params"] if id(p) in twins]
    schedule = workload.schedule(optimizer) if workload.schedule is not None else None

    updated: set[int] = set()  # in this step: nothing is updated twice

    def follow(changed: Optimizer, args: Any, kwargs: Any) -> None:
        optimizer.zero_grad(set_to_none=True)
        for p in (p for group in changed.param_groups for p in group["params"]):
            if p.grad is not None and id(p) in twins and id(p) not in updated:
                twins[id(p)].grad = p.grad.detach().double().clone()
                updated.add(id(p))
        optimizer.step()

    hook = trainer.optimizer.register_step_pre_hook(follow)
    try:
        for _ in range(num_steps):
            updated.clear()
            trainer.step()
            if schedule is not None:
                schedule.step()
    finally:
        hook.remove()
    return _judged([name for name, _ in parameters], [p for _, p in parameters], precise, begin)


def _judged(
    names: list[str], found: list[nn.Parameter], precise: list[nn.Parameter], begin: list[Tensor]
) -> UpdateProof:
    errors = {}
    for name, p, reference, first in zip(names, found, precise, begin, strict=True):
        change = reference.detach() - first
        norm = float(change.norm())
        apart = float((value_of(p).double() - reference.detach()).norm())
        # What rounding the parameter itself to float32 leaves of the change.
        rounding = NUM_STEPS * float(first.norm()) * torch.finfo(torch.float32).eps
        errors[name] = max(0.0, apart - rounding) / norm if norm else float(apart > rounding)
    worst = max(errors, key=lambda name: errors[name], default="")
    error = errors.get(worst, 0.0)
    is_same = error <= _LEAST_ERROR
    words = f"{'same' if is_same else 'other'} updates: {worst} differs by {error:.1e} of its change from float64"
    return UpdateProof(is_same=is_same, words=words, error=error, parameter=worst)
