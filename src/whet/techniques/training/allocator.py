"""Keep freed memory in the process, so that each step does not fault its pages in again.

What            glibc's malloc takes blocks of 32 MB and more from the system in each step and gives them back after it.
                With these settings they come from its own heap, which keeps them (mallopt: M_MMAP_MAX,
                M_TRIM_THRESHOLD).
When it helps   Training on a CPU whose activations or logits are large blocks: the kernel zeroes every page of them.
When it hurts   The process keeps its peak. Fragments may raise that peak.
Numerics        None: the same numbers.
Composes        With everything.
Source          glibc manual, "Malloc Tunable Parameters"; PyTorch issue 117429.
"""

from dataclasses import dataclass

from whet.machine import Limits, Machine
from whet.measure.malloc import has_glibc, keep_all_memory
from whet.technique import Applicability, Applies, NotApplicable
from whet.training.parts import Parts
from whet.training.step_profile import StepProfile
from whet.training.technique import Exactness, TrainingStage, TrainingTechnique


@dataclass(frozen=True, kw_only=True)
class Options:
    """Hold the options of allocator. There are none."""


def check(parts: Parts, machine: Machine, options: Options) -> Applicability:
    """Check that tensors lie in memory of glibc's malloc."""
    if parts.device_type != "cpu":
        return NotApplicable("the model is on the GPU, whose memory PyTorch keeps already")
    if not has_glibc():
        return NotApplicable("the process does not use glibc's malloc")
    return Applies("freed memory stays in the process")


def predict(profile: StepProfile, limits: Limits, options: Options) -> float:
    """Return the highest possible speedup: what is neither arithmetic nor the optimiser is half page faults."""
    return profile.bound(other_s=profile.other_s / 2, loss_s=profile.loss_s / 2, products_s=0.9 * profile.products_s)


def apply(parts: Parts, options: Options) -> Parts:
    """Return the parts; malloc keeps memory from now on."""
    keep_all_memory()
    return parts


TECHNIQUE = TrainingTechnique(
    name="allocator",
    stage=TrainingStage.RUNTIME,
    order=20,
    card=__doc__,
    options=Options,
    exactness=Exactness.EXACT,
    check=check,
    predict=predict,
    apply=apply,
)
