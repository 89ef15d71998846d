"""Scale each parameter's update of Adam to the size of the parameter itself.

What            LAMB in place of AdamW, by pytorch-optimizer: each parameter's update is made as long as the parameter,
                times the learning rate. The decay is part of the update. Lengths count as 10 at most. There is no bias
                correction, as in version 3 of the paper.
When it helps   Large batches, with which AdamW's learning rate would have to be too large for some layers. Nothing
                becomes faster or smaller, so whet tune does not try it by itself.
When it hurts   It is another algorithm: the learning rate means another thing and wants another value, and the loss
                must be compared. A parameter that begins at zero, as a bias does, moves slowly.
Numerics        Not those of AdamW. The learning rate, betas and decay stay the loop's own; eps is 1e-6.
Composes        Alone in its group (optimizer). It counts its steps in the optimiser's groups, so it does not go with
                what steps on copies of these (bfloat16 parameters, updates in backward).
Source          You et al., 2020, arXiv:1904.00962 (version 3); pytorch-optimizer's documentation, Lamb.
"""

import importlib.metadata
from dataclasses import replace

import torch
from packaging.requirements import Requirement

from whet.measure.machine import Machine
from whet.techniques.mechanisms.optimizers import OPTIMIZER, WHOLE_GROUPS, replaced, why_not_replaced
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.mechanisms.uses import Use
from whet.techniques.technique import Applicability, Applies, NoOptions, NotApplicable
from whet.techniques.training_technique import Exactness, TrainingStage, TrainingTechnique

_LIBRARY = Requirement("pytorch-optimizer>=4.1,<5")  # what the tests hold against the paper's formula


def check(parts: Parts, machine: Machine, options: NoOptions) -> Applicability:
    """Check that the library is there, and that the optimiser is an AdamW over whole parameters."""
    if reason := _why_no_library() or why_not_replaced(parts.optimizer, torch.optim.AdamW):
        return NotApplicable(reason)
    groups = parts.optimizer.param_groups
    if any(group[name] for group in groups for name in ("amsgrad", "maximize")):
        return NotApplicable("the optimiser's amsgrad or maximize has no counterpart here")
    if any(hasattr(p, "device_mesh") for group in groups for p in group["params"]):
        return NotApplicable("the parameters are sharded, and LAMB needs the length of each whole one")
    return Applies(f"updates of {sum(len(group['params']) for group in groups)} parameters, each scaled by its length")


def _why_no_library() -> str:
    """Return how the library is installed; "" where it is."""
    try:
        found = importlib.metadata.version(_LIBRARY.name)
    except importlib.metadata.PackageNotFoundError:
        return f"LAMB comes from a library: install {_LIBRARY.name} (pip install '{_LIBRARY}')"
    if not _LIBRARY.specifier.contains(found, prereleases=True):
        return f"LAMB comes from a library, and {_LIBRARY.name} is {found}: install {_LIBRARY}"
    return ""


def apply(parts: Parts, options: NoOptions) -> Parts:
    """Return the parts with LAMB as the paper has it: the decay is scaled too, and early steps are no longer ones."""
    from pytorch_optimizer import Lamb

    made = replaced(
        parts.optimizer,
        lambda groups: Lamb(groups, weight_decouple=False, adam_debias=True),
        frozenset({"lr", "betas", "weight_decay"}),
    )
    return replace(parts, optimizer=made)


TECHNIQUE = TrainingTechnique(
    name="lamb",
    stage=TrainingStage.OPTIMIZER,
    order=45,
    card=__doc__,
    exactness=Exactness.OTHER,
    check=check,
    apply=apply,
    keeps_dropout=True,
    groups=frozenset({OPTIMIZER, WHOLE_GROUPS}),
    refuses={Use.FSDP2: "it needs the length of each whole parameter"},
)
