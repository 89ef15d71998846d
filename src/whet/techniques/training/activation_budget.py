"""Have the compiler keep only a part of the activations, and compute the rest again in backward.

What            torch.compile's partitioner gets a budget: the part of the activations' memory that forward may keep for
                backward. It chooses what is cheapest to compute again.
When it helps   Activations take most of the memory, in a compiled model.
When it hurts   Always in time, the more the smaller the budget is. Without compile it does nothing.
Numerics        Those of compile: the same operators run again.
Composes        With compile, which it needs; alone in its group (activations): the budget overrides checkpoints.
Source          PyTorch documentation, torch._functorch.config.activation_memory_budget; PyTorch blog, "Current and New
                Activation Checkpointing Techniques in PyTorch", 2025.
"""

from dataclasses import dataclass

from whet.core.artefact.inductor import missing_tools
from whet.measure.machine import Machine
from whet.techniques.mechanisms.blocks import ACTIVATIONS
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.technique import Applicability, Applies, NotApplicable
from whet.techniques.training_technique import COMPILER, Exactness, TrainingStage, TrainingTechnique
from whet.ui.figures import percent


@dataclass(frozen=True, kw_only=True)
class Options:
    """Hold the options of activation_budget.

    Attributes:
        kept: The part of the activations' memory that may be kept, 0 to 1. 0 keeps the inputs of the graph alone.
    """

    kept: float = 0.5


def check(parts: Parts, machine: Machine, options: Options) -> Applicability:
    if not 0 <= options.kept < 1:
        return NotApplicable(f"kept must be 0 or more and below 1, not {options.kept:g}")
    if reason := missing_tools(at_load=True, device=parts.device_type):
        return NotApplicable(reason)
    return Applies(f"{percent(options.kept, decimals=0)} of the activations' memory is kept")


def apply(parts: Parts, options: Options) -> Parts:
    """Return the parts; what this process compiles from now on keeps within the budget."""
    import torch._functorch.config

    torch._functorch.config.activation_memory_budget = options.kept
    return parts


TECHNIQUE = TrainingTechnique(
    name="activation_budget",
    stage=TrainingStage.MEMORY,
    order=20,
    card=__doc__,
    options=Options,
    exactness=Exactness.EXACT,
    check=check,
    apply=apply,
    space={"kept": (0.5, 0.25, 0.0)},
    groups=frozenset({ACTIVATIONS}),
    needs=frozenset({COMPILER}),
    # So much of the activations is kept.
    predict_memory=lambda memory, options: memory.left(other=max(options.kept, 0.1)),
)
