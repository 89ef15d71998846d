"""Record the gradients and judge the updates of a loop's first steps, with its dropout turned off."""

import copy
import functools
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from whet.errors import reason
from whet.scripts.injection.loop_finder import FoundLoop
from whet.techniques.proof import gradients
from whet.techniques.proof.updates import UpdateFollower, UpdateProof

NUM_STEPS = 3
_DROPPING = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
_MOST_FOLLOWED = 300_000_000  # numbers: with its state, AdamW takes 32 bytes for each in float64


class FirstSteps:
    """Follow the first steps of a loop.

    Create this before techniques change the loop: what the optimiser should do is what it was before.
    """

    def __init__(self, found: FoundLoop) -> None:
        self._trained = found.trained
        without_dropout(found.parts.model)
        self._gradients: dict[str, Tensor] = {}
        self._num_steps = 0
        self._follower: UpdateFollower | None = None
        self.updates: UpdateProof | None = None
        if sum(p.numel() for _, p in self._trained) > _MOST_FOLLOWED:
            words = "updates are not compared: copies of so many parameters in float64 may not fit into memory"
            self.updates = UpdateProof(is_same=None, words=words)
        else:
            self._follower = UpdateFollower(self._trained, _fresh(found.parts.optimizer))

    def before_step(self, optimizer: Optimizer) -> None:
        """Record the gradients that the optimiser is about to use, and make the same update in float64."""
        if self._num_steps >= NUM_STEPS:
            return
        for name, p in self._trained:
            if p.grad is not None:
                self._gradients |= gradients.noted(f"{self._num_steps}.{name}", p.grad)
        if self._follower is not None:
            self._follow(self._follower, optimizer)

    def _follow(self, follower: UpdateFollower, optimizer: Optimizer) -> None:
        try:
            for mine, theirs in zip(follower.optimizer.param_groups, optimizer.param_groups, strict=True):
                mine["lr"] = theirs["lr"]  # a schedule may have changed it
            follower.begin_step()
            follower.follow(optimizer)
        except Exception as error:  # noqa: BLE001 - optimisers of all kinds; it is said in the proof
            self._follower = None
            words = f"updates cannot be compared: {type(optimizer).__name__} cannot run in float64: {reason(error)}"
            self.updates = UpdateProof(is_same=None, words=words)

    def after_step(self) -> None:
        """Judge the updates once all steps are made, and let go of the copies."""
        self._num_steps += 1
        if self._num_steps == NUM_STEPS and self._follower is not None:
            self.updates = self._follower.judged()
            self._follower = None

    def is_mine(self, optimizer: Optimizer) -> bool:
        """Return whether an optimiser is the one that follows in float64."""
        return self._follower is not None and optimizer is self._follower.optimizer

    def write(self, path: Path) -> None:
        """Write the gradients."""
        gradients.write(self._gradients, path)


def without_dropout(model: nn.Module) -> None:
    """Let nothing be dropped in this process from now on: another variant would draw other numbers.

    Layers have the probability 0, and so have the functions of torch.nn.functional, attention's among them.
    """
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
    for name in _DROPPING:
        setattr(F, name, _dropping_nothing(getattr(F, name), at=1))
    F.scaled_dot_product_attention = _dropping_nothing(F.scaled_dot_product_attention, at=4)


def _dropping_nothing(call: Callable[..., Any], at: int) -> Callable[..., Any]:
    """Wrap a function whose argument number `at`, called p or dropout_p, is the probability to drop."""

    @functools.wraps(call)
    def dropped(*args: Any, **kwargs: Any) -> Any:
        if len(args) > at:
            args = (*args[:at], 0.0, *args[at + 1 :])
        else:
            kwargs["p" if at == 1 else "dropout_p"] = 0.0
        return call(*args, **kwargs)

    return dropped


def _fresh(optimizer: Optimizer) -> Optimizer:
    """Return an optimiser of the same kind and settings, with groups and a state of its own."""
    fresh = copy.copy(optimizer)
    fresh.param_groups = [{**group, "params": list(group["params"])} for group in optimizer.param_groups]
    fresh.state = defaultdict(dict)
    fresh.defaults = dict[str, Any](optimizer.defaults)
    return fresh
