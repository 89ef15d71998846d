"""Prove that a changed loop updates its parameters as the original's optimiser would, against float64.

The first steps of the loop are made, and the gradients that each update saw are given to the workload's own optimiser
with its own schedule, on copies of the parameters in float64. That sees what gradients and losses do not: another
learning rate, a lost weight decay, an update that rounds away.
"""

from collections.abc import Sequence

import torch
from pydantic import BaseModel
from torch import Tensor, nn
from torch.optim import Optimizer

from whet.core.workload.training import Trainer, TrainingWorkload
from whet.parallel.pieces import whole_of
from whet.techniques.mechanisms.master_weights import value_of

NUM_STEPS = 3
_LEAST_ERROR = 1e-3  # of an update: float32 parameters are 1e4 times as large as a small update, and rounded to 6e-8


class UpdateProof(BaseModel, frozen=True, ser_json_inf_nan="constants"):
    """Say how the updates of a changed loop compare with those of the original's optimiser in float64.

    Attributes:
        is_same: Whether they are the same, rounding aside; None where they cannot be compared.
        error: The largest relative error of any parameter's change over the steps.
        parameter: The parameter that is furthest off.
    """

    is_same: bool | None
    words: str
    error: float = 0.0
    parameter: str = ""


class UpdateFollower:
    """Make the updates of a loop once more, in float64, and judge how the loop's own differ.

    Where processes hold parts of the parameters, each follows the whole ones, and all must call its methods.

    The optimiser is of the original's kind, over these parameters. It is taken over: from here on it updates the copies
    in float64.
    """

    def __init__(self, parameters: Sequence[tuple[str, nn.Parameter]], optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self._parameters = list(parameters)
        self._precise = [nn.Parameter(whole_of(value_of(p)).double().clone()) for _, p in parameters]
        self._begin = [p.detach().clone() for p in self._precise]
        self._twins = {id(p): twin for twin, (_, p) in zip(self._precise, parameters, strict=True)}
        self._updated: set[int] = set()  # in this step: nothing is updated twice
        groups = optimizer.param_groups
        self.has_others = any(p.requires_grad and id(p) not in self._twins for group in groups for p in group["params"])
        for group in groups:
            group["params"] = [self._twins[id(p)] for p in group["params"] if id(p) in self._twins]

    def begin_step(self) -> None:
        self._updated.clear()

    def follow(self, changed: Optimizer) -> None:
        """Make the update that `changed` is about to make, from the same gradients."""
        self.optimizer.zero_grad(set_to_none=True)
        for p in (p for group in changed.param_groups for p in group["params"]):
            if p.grad is not None and id(p) in self._twins and id(p) not in self._updated:
                self._twins[id(p)].grad = whole_of(p.grad.detach()).double().clone()
                self._updated.add(id(p))
        self.optimizer.step()

    def judged(self) -> UpdateProof:
        """Judge the changes of the parameters since the beginning."""
        if self.has_others:
            return UpdateProof(is_same=None, words="updates cannot be compared: the optimiser has other parameters")
        names = [name for name, _ in self._parameters]
        return _judged(names, [p for _, p in self._parameters], self._precise, self._begin)


def prove_updates(workload: TrainingWorkload, trainer: Trainer, *, num_steps: int = NUM_STEPS) -> UpdateProof:
    """Make a new trainer's first steps, and judge them by the optimiser and schedule of the original, `workload`."""
    parameters = [(name, p) for name, p in trainer.model.named_parameters() if p.requires_grad]
    optimizer = workload.optimizer(workload.model.parameters())
    follower = UpdateFollower(parameters, optimizer)
    if follower.has_others:
        return follower.judged()
    schedule = workload.schedule(optimizer) if workload.schedule is not None else None
    hook = trainer.optimizer.register_step_pre_hook(lambda changed, args, kwargs: follower.follow(changed))
    try:
        for _ in range(num_steps):
            follower.begin_step()
            trainer.step()
            if schedule is not None:
                schedule.step()
    finally:
        hook.remove()
    return follower.judged()


def _judged(
    names: list[str], found: list[nn.Parameter], precise: list[nn.Parameter], begin: list[Tensor]
) -> UpdateProof:
    errors = {}
    for name, p, reference, first in zip(names, found, precise, begin, strict=True):
        change = reference.detach() - first
        norm = float(change.norm())
        apart = float((whole_of(value_of(p)).double() - reference.detach()).norm())
        # What rounding the parameter itself to float32 leaves of the change.
        rounding = NUM_STEPS * float(first.norm()) * torch.finfo(torch.float32).eps
        errors[name] = max(0.0, apart - rounding) / norm if norm else float(apart > rounding)
    worst = max(errors, key=lambda name: errors[name], default="")
    error = errors.get(worst, 0.0)
    is_same = error <= _LEAST_ERROR
    words = f"{'same' if is_same else 'other'} updates: {worst} differs by {error:.1e} of its change from float64"
    return UpdateProof(is_same=is_same, words=words, error=error, parameter=worst)
