"""Train on another number of threads than PyTorch chose.

What            torch.set_num_threads for the whole process.
When it helps   Small models; machines with two threads per core; a loader whose workers need cores of their own.
When it hurts   Large models on fewer cores.
Numerics        Sums may be split in another order: 1e-6 relative in float32.
Composes        With everything; last.
Source          PyTorch documentation, "CPU threading and TorchScript inference"; torch.set_num_threads.
"""

from dataclasses import dataclass

import torch

from whet.measure.machine import Limits, Machine
from whet.techniques.costs.step_profile import StepProfile
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.runtime.threads import of_threads, thread_counts
from whet.techniques.technique import Applicability, Applies, NotApplicable, OptionSpace
from whet.techniques.training_technique import Exactness, TrainingStage, TrainingTechnique

_SPACE: OptionSpace = {"num_threads": thread_counts()}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Hold the options of threads.

    Attributes:
        num_threads: The number of intra-op threads of the process.
    """

    num_threads: int = _SPACE["num_threads"][0]


def check(parts: Parts, machine: Machine, options: Options) -> Applicability:
    if parts.device_type != "cpu":
        return NotApplicable("the model runs on the GPU; PyTorch's threads compute on the CPU alone")
    if not 1 <= options.num_threads <= machine.cores:
        return NotApplicable(f"{options.num_threads} threads: this machine has {machine.cores} cores")
    if options.num_threads == torch.get_num_threads():
        return NotApplicable(f"PyTorch uses {options.num_threads} threads already", is_so=True)
    return Applies(f"{options.num_threads} in place of {torch.get_num_threads()} threads")


def predict(profile: StepProfile, limits: Limits, options: Options) -> float:
    """Return the highest possible speedup: threads wait for nobody, and the cores left free read the data.

    Products take what they take now, or what these cores' limit allows if that is more. Those in another dtype than
    the parameters', as under autocast, are faster than that limit, and count as they are.
    """
    waits_s = max(0.0, profile.other_s - profile.num_operators * limits.operator_s)
    now_s = profile.products_s + profile.attention_s
    all_s = profile.flops / limits.peak(profile.dtype)
    least_s = profile.flops / of_threads(limits, options.num_threads).peak(profile.dtype)
    lost_s = max(0.0, least_s - now_s) if all_s <= now_s else 0.0
    gained = profile.bound(other_s=waits_s, data_s=0.0)
    return max(1.0, gained / (1 + gained * lost_s / profile.total_s)) if profile.total_s else gained


def apply(parts: Parts, options: Options) -> Parts:
    torch.set_num_threads(options.num_threads)
    return parts


TECHNIQUE = TrainingTechnique(
    name="threads",
    stage=TrainingStage.RUNTIME,
    order=10,
    card=__doc__,
    options=Options,
    exactness=Exactness.EXACT,
    check=check,
    predict=predict,
    apply=apply,
    space=_SPACE,
)
