"""Update all parameters in one fused loop.

What            The optimiser's own fused kernel: each number is read once, updated and written once. Optimisers without
                one take all parameters operator by operator (kind="foreach").
When it helps   Adam, AdamW, SGD and Adagrad whose update is a visible part of the step: small batches, many parameters.
When it hurts   Hardly ever; "foreach" needs memory for intermediate results of all parameters at once.
Numerics        The same formula in another order of operations: 1e-6 relative of an update.
Composes        With everything that keeps the optimiser.
Source          PyTorch documentation, torch.optim.AdamW, "fused" and "foreach".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from whet.machine import Limits, Machine
from whet.technique import Applicability, Applies, NotApplicable
from whet.training.optimizers import OPTIMIZER
from whet.training.parts import Parts
from whet.training.step_profile import StepProfile
from whet.training.technique import Exactness, TrainingStage, TrainingTechnique

_SPACE: Mapping[str, tuple[Any, ...]] = {"kind": ("fused", "foreach")}
_FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Hold the options of fused_optimizer.

    Attributes:
        kind: "fused" for one kernel, "foreach" for one operator after the other over all parameters.
    """

    kind: str = "fused"


def check(parts: Parts, machine: Machine, options: Options) -> Applicability:
    """Check that the optimiser has such an implementation and does not use it already."""
    optimizer = parts.optimizer
    name = type(optimizer).__name__
    if options.kind not in _SPACE["kind"]:
        return NotApplicable(f"kind must be fused or foreach, not {options.kind!r}")
    if options.kind == "fused" and type(optimizer) not in _FUSED:
        return NotApplicable(f"{name} has no fused kernel")
    if options.kind == "foreach" and type(optimizer) in _FUSED:
        return NotApplicable(f"{name} has a fused kernel, which is faster")
    is_torchs = getattr(torch.optim, name, None) is type(optimizer)
    if options.kind == "foreach" and not (is_torchs and "foreach" in optimizer.defaults):
        return NotApplicable(f"{name} has no implementation over all parameters")
    if all(group.get(options.kind) for group in optimizer.param_groups):
        return NotApplicable(f"the optimiser is {options.kind} already", is_so=True)
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
    use = _take_together if options.kind == "foreach" else _fuse
    use(parts.optimizer)
    parts.optimizer.register_load_state_dict_post_hook(use)  # a checkpoint brings its own settings
    return parts


def _take_together(optimizer: Optimizer) -> None:
    for group in (optimizer.defaults, *optimizer.param_groups):
        group["foreach"] = True


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
    keeps_dropout=True,
    space=_SPACE,
    groups=frozenset({OPTIMIZER}),
)
