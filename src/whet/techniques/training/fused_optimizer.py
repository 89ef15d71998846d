"""Update all parameters in one fused loop.

What            The optimiser's own fused kernel: each number is read once, updated and written once.
When it helps   Adam, AdamW, SGD and Adagrad whose update is a visible part of the step: small batches, many parameters.
When it hurts   Hardly ever.
Numerics        The same formula in another order of operations: 1e-6 relative of an update.
Composes        With everything that keeps the optimiser.
Source          PyTorch documentation, torch.optim.AdamW, "fused".
"""

from dataclasses import dataclass

import torch
from torch.optim import Optimizer

from whet.machine import Limits, Machine
from whet.technique import Applicability, Applies, NotApplicable
from whet.training.optimizers import OPTIMIZER
from whet.training.parts import Parts
from whet.training.step_profile import StepProfile
from whet.training.technique import Exactness, TrainingStage, TrainingTechnique

_FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Hold the options of fused_optimizer. There are none."""


def check(parts: Parts, machine: Machine, options: Options) -> Applicability:
    """Check that the optimiser has a fused kernel and does not use it already."""
    optimizer = parts.optimizer
    if type(optimizer) not in _FUSED:
        return NotApplicable(f"{type(optimizer).__name__} has no fused kernel")
    if all(group.get("fused") for group in optimizer.param_groups):
        return NotApplicable("the optimiser is fused already", is_so=True)
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return NotApplicable("the optimiser's step is differentiated")
    if not all(p.is_floating_point() for group in optimizer.param_groups for p in group["params"]):
        return NotApplicable("some parameters are not floating-point")
    return Applies(f"one loop for {sum(len(group['params']) for group in optimizer.param_groups)} parameters")


def predict(profile: StepProfile, limits: Limits, options: Options) -> float:
    """Return the highest possible speedup: the update takes what moving its numbers takes."""
    return profile.bound(optimizer_s=profile.least_optimizer_s(limits))


def apply(parts: Parts, options: Options) -> Parts:
    """Return the parts with the same optimiser, which is fused from its next step on."""
    _fuse(parts.optimizer)
    parts.optimizer.register_load_state_dict_post_hook(_fuse)  # a checkpoint brings its own settings
    return parts


def _fuse(optimizer: Optimizer) -> None:
    optimizer.defaults.update(fused=True, foreach=False)
    for group in optimizer.param_groups:
        group.update(fused=True, foreach=False)
    for p, state in optimizer.state.items():
        if isinstance(step := state.get("step"), torch.Tensor):
            state["step"] = step.to(device=p.device, dtype=torch.float32)
    optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]


TECHNIQUE = TrainingTechnique(
    name="fused_optimizer",
    stage=TrainingStage.OPTIMIZER,
    order=10,
    card=__doc__,
    options=Options,
    exactness=Exactness.EXACT,
    check=check,
    predict=predict,
    apply=apply,
    groups=frozenset({OPTIMIZER}),
)
