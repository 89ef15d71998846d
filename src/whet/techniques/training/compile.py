"""Compile forward and backward to fused loops with torch.compile.

What            The model is compiled in place by nn.Module.compile: forward and backward become generated C++ or
                Triton, in which neighbouring operators share a loop.
When it helps   Steps with much work between the products: norms, activations, casts, dropout, the loss.
When it hurts   Few steps: the first one compiles for seconds to minutes. Batches of ever-changing sizes compile anew.
Numerics        Sums in another order: 1e-6 relative in float32. Under autocast fewer roundings than eager.
Composes        With everything. A forward that must stay as it is, such as chunked_loss's last layer, is left alone;
                the parts of the model beside it are compiled one by one.
Source          Ansel et al., 2024, doi:10.1145/3620665.3640366; PyTorch documentation, torch.compile.
"""

from whet.core.artefact.inductor import missing_tools
from whet.measure.machine import Machine
from whet.techniques.mechanisms.compiled import compile_in_place
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.technique import Applicability, Applies, NoOptions, NotApplicable
from whet.techniques.training_technique import COMPILER, Exactness, TrainingStage, TrainingTechnique


def check(parts: Parts, machine: Machine, options: NoOptions) -> Applicability:
    if reason := missing_tools(at_load=True, device=parts.device_type):
        return NotApplicable(reason)
    return Applies("forward and backward as generated code")


def apply(parts: Parts, options: NoOptions) -> Parts:
    compile_in_place(parts.model)
    return parts


TECHNIQUE = TrainingTechnique(
    name="compile",
    stage=TrainingStage.COMPILER,
    order=10,
    card=__doc__,
    exactness=Exactness.EXACT,
    check=check,
    predict=lambda profile, limits, options: profile.bound(other_s=0.0, loss_s=0.0),
    apply=apply,
    groups=frozenset({COMPILER}),
    predict_memory=lambda memory, options: memory.left(other=0.5),  # fused operators keep less between them
    compiles=True,
)
