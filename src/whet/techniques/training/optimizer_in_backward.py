"""Update each parameter as soon as its gradient is there, and free the gradient.

What            Backward calls the optimiser for one parameter after the other. At no time are all gradients in memory.
When it helps   Memory: the gradients take as much as the parameters.
When it hurts   Not with accumulation, a global clipping of gradients, or a gradient scaler: they need all gradients at
                once. whet tune refuses it for a workload that clips or accumulates.
Numerics        The same formula: bit-equal in most optimisers.
Composes        With everything that keeps the optimiser; alone in its group (gradients).
Source          PyTorch tutorial, "How to save memory by fusing the optimizer step into the backward pass".
"""

from functools import partial
from typing import Any

from torch import nn
from torch.optim import Optimizer

from whet.measure.machine import Limits, Machine
from whet.techniques.costs.step_profile import StepProfile
from whet.techniques.mechanisms.kept_gradients import are_kept
from whet.techniques.mechanisms.optimizers import EARLY, GRADIENTS, OPTIMIZER, replace_step, updates_one_by_one
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.mechanisms.used_gradients import UsedGradients
from whet.techniques.mechanisms.uses import NEEDS_ALL_GRADIENTS
from whet.techniques.technique import Applicability, Applies, NoOptions, NotApplicable
from whet.techniques.training_technique import Exactness, TrainingStage, TrainingTechnique


def check(parts: Parts, machine: Machine, options: NoOptions) -> Applicability:
    if reason := updates_one_by_one(parts.optimizer):
        return NotApplicable(reason)
    return Applies("gradients are freed one by one")


def predict(profile: StepProfile, limits: Limits, options: NoOptions) -> float:
    """Return the highest possible speedup: gradients are in cache when they are used."""
    least_s = profile.least_optimizer_s(limits, bytes_per_parameter=24.0)
    return profile.bound(optimizer_s=min(profile.optimizer_s, least_s))


def apply(parts: Parts, options: NoOptions) -> Parts:
    """Return the parts with an optimiser that steps in backward. The loop's own calls of it do nothing more."""
    optimizer = parts.optimizer
    update, used = optimizer.step, UsedGradients("optimizer_in_backward")
    for number, group in enumerate(optimizer.param_groups):
        for p in group["params"]:
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(partial(_update, optimizer, update, number, used))

    def step() -> None:
        # Backward has made the update. Where it has made none, as after fully_shard has put other parameters into the
        # model, the optimiser's own step is called, whose checks say so.
        if not used.taken():
            update()

    replace_step(optimizer, step)
    return parts


def _update(optimizer: Optimizer, update: Any, number: int, used: UsedGradients, p: nn.Parameter) -> None:
    """Update one parameter with the settings that its group has now.

    Args:
        number: The index of the parameter's group. A checkpoint that is loaded replaces the groups themselves.
        used: Takes the place of the gradient, so that whatever the loop still does with it is refused.
    """
    if are_kept():
        return
    groups = optimizer.param_groups
    optimizer.param_groups = [{**groups[number], "params": [p]}]
    try:
        update()
    finally:
        optimizer.param_groups = groups
    used.put(p)


TECHNIQUE = TrainingTechnique(
    name="optimizer_in_backward",
    stage=TrainingStage.OPTIMIZER,
    order=90,
    card=__doc__,
    exactness=Exactness.EXACT,
    check=check,
    predict=predict,
    apply=apply,
    keeps_dropout=True,
    groups=frozenset({EARLY, GRADIENTS, OPTIMIZER}),
    predict_memory=lambda memory, options: memory.left(gradients=0.02),  # one gradient is there at a time
    refuses=NEEDS_ALL_GRADIENTS,
)
