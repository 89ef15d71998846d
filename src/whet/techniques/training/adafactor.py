"""Keep one number per row and column in place of Adam's two per parameter.

What            Adafactor in place of Adam or AdamW: the second moment of a matrix is kept as the product of its row and
                column sums, and there is no first moment.
When it helps   The optimiser's state takes much of the memory.
When it hurts   It is another algorithm: the loss must be compared, and the learning rate may want to be another one.
Numerics        Not those of AdamW. The learning rate, the decay and the schedule stay the loop's own.
Composes        Alone in its group (optimizer); with everything else.
Source          Shazeer and Stern, 2018, arXiv:1804.04235; PyTorch documentation, torch.optim.Adafactor.
"""

from dataclasses import replace

import torch

from whet.measure.machine import Machine
from whet.techniques.mechanisms.optimizers import OPTIMIZER, replaced, why_not_replaced
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.mechanisms.uses import Use
from whet.techniques.technique import Applicability, Applies, NoOptions, NotApplicable
from whet.techniques.training_technique import Exactness, TrainingStage, TrainingTechnique


def check(parts: Parts, machine: Machine, options: NoOptions) -> Applicability:
    if reason := why_not_replaced(parts.optimizer, torch.optim.Adam, torch.optim.AdamW):
        return NotApplicable(reason)
    return Applies("row and column sums in place of two moments")


def apply(parts: Parts, options: NoOptions) -> Parts:
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
    exactness=Exactness.OTHER,
    check=check,
    # parameters and gradients are read, parameters written
    predict=lambda profile, limits, options: profile.bound(
        optimizer_s=profile.least_optimizer_s(limits, bytes_per_parameter=12.0)
    ),
    apply=apply,
    keeps_dropout=True,
    groups=frozenset({OPTIMIZER}),
    # The state is a row and a column of each matrix.
    predict_memory=lambda memory, options: memory.left(optimizer=0.02),
    refuses={Use.FSDP2: "its row and column sums are those of whole matrices"},
)
