"""Keep one number per row and column in place of Adam's two per parameter.

What            Adafactor in place of Adam or AdamW: the second moment of a matrix is kept as the product of its row and
                column sums, and there is no first moment.
When it helps   The optimiser's state takes much of the memory.
When it hurts   It is another algorithm: the loss must be compared, and the learning rate may want to be another one.
Numerics        Not those of AdamW. The learning rate, the decay and the schedule stay the loop's own.
Composes        Alone in its group (optimizer); with everything else.
Source          Shazeer and Stern, 2018, arXiv:1804.04235; PyTorch documentation, torch.optim.Adafactor.
"""

from dataclasses import dataclass, replace

import torch

from whet.measure.machine import Limits, Machine
from whet.techniques.costs.memory import StepMemory
from whet.techniques.costs.step_profile import StepProfile
from whet.techniques.mechanisms.optimizers import OPTIMIZER, replaced, why_not_replaced
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.mechanisms.uses import Use
from whet.techniques.technique import Applicability, Applies, NotApplicable
from whet.techniques.training_technique import Exactness, TrainingStage, TrainingTechnique


@dataclass(frozen=True, kw_only=True)
class Options:
    """Hold the options of adafactor. There are none."""


def check(parts: Parts, machine: Machine, options: Options) -> Applicability:
    """Check that the optimiser is Adam or AdamW."""
    if reason := why_not_replaced(parts.optimizer, torch.optim.Adam, torch.optim.AdamW):
        return NotApplicable(reason)
    return Applies("row and column sums in place of two moments")


def predict(profile: StepProfile, limits: Limits, options: Options) -> float:
    """Return the highest possible speedup: parameters and gradients are read, parameters written."""
    return profile.bound(optimizer_s=profile.least_optimizer_s(limits, bytes_per_parameter=12.0))


def predict_memory(memory: StepMemory, options: Options) -> float:
    """Return the least bytes of a step: the state is a row and a column of each matrix."""
    return memory.left(optimizer=0.02)


def apply(parts: Parts, options: Options) -> Parts:
    """Return the parts with Adafactor, whose step is as large as the loop's learning rate says."""
    made = replaced(
        parts.optimizer,
        lambda groups: torch.optim.Adafactor(groups, beta2_decay=-0.8, eps=(None, 1e-3), d=1.0),
        frozenset({"lr", "weight_decay", "maximize"}),
    )
    return replace(parts, optimizer=made)


TECHNIQUE = TrainingTechnique(
    name="adafactor",
    stage=TrainingStage.OPTIMIZER,
    order=20,
    card=__doc__,
    options=Options,
    exactness=Exactness.OTHER,
    check=check,
    predict=predict,
    apply=apply,
    keeps_dropout=True,
    groups=frozenset({OPTIMIZER}),
    predict_memory=predict_memory,
    refuses={Use.FSDP2: "its row and column sums are those of whole matrices"},
)
