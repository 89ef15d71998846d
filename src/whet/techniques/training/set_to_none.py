"""Free gradients in zero_grad in place of writing zeros.

What            optimizer.zero_grad sets gradients to None, whatever the optimiser's own default or the loop asks for.
                Backward then writes each gradient in place of adding it to zeros.
When it helps   Optimisers whose zero_grad keeps the gradients by default: those of older libraries.
When it hurts   A loop that reads a gradient between zero_grad and backward finds None.
Numerics        None where each parameter gets a gradient in each step. Without one a parameter is left alone,
                where zeros would let it decay.
Composes        With everything.
Source          PyTorch documentation, torch.optim.Optimizer.zero_grad.
"""

import inspect
from typing import Any

from whet.measure.machine import Limits, Machine
from whet.techniques.costs.step_profile import StepProfile
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.technique import Applicability, Applies, NoOptions, NotApplicable
from whet.techniques.training_technique import Exactness, TrainingStage, TrainingTechnique


def check(parts: Parts, machine: Machine, options: NoOptions) -> Applicability:
    parameter = inspect.signature(parts.optimizer.zero_grad).parameters.get("set_to_none")
    if parameter is None:
        return NotApplicable("the optimiser's zero_grad cannot set gradients to None")
    if parameter.default is not False:
        return NotApplicable("the optimiser's zero_grad sets gradients to None already")
    return Applies("gradients are freed, not written")


def predict(profile: StepProfile, limits: Limits, options: NoOptions) -> float:
    """Return the highest possible speedup: no zeros are written, and no gradient is read to be added to."""
    saved_s = profile.num_parameters * 12.0 / limits.read_bandwidth
    return profile.bound(optimizer_s=max(0.0, profile.optimizer_s - saved_s))


def apply(parts: Parts, options: NoOptions) -> Parts:
    free = parts.optimizer.zero_grad

    def zero_grad(*args: Any, **kwargs: Any) -> None:
        free(set_to_none=True)

    parts.optimizer.zero_grad = zero_grad  # type: ignore[method-assign]
    return parts


TECHNIQUE = TrainingTechnique(
    name="set_to_none",
    stage=TrainingStage.OPTIMIZER,
    order=50,
    card=__doc__,
    exactness=Exactness.EXACT,
    check=check,
    predict=predict,
    apply=apply,
    keeps_dropout=True,
)
