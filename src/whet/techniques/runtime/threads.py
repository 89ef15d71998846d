"""Run on another number of threads than PyTorch chose.

What            The artefact sets torch's number of intra-op threads (or its runtime's) when it is loaded.
When it helps   Small models, where waking threads costs more than they compute; machines with two threads per core.
When it hurts   Large models on fewer cores. The setting holds for the whole process that loads the artefact.
Numerics        Sums may be split in another order: within 1e-6 relative in float32.
Composes        With everything; last.
Source          PyTorch documentation, "CPU threading and TorchScript inference"; torch.set_num_threads.
"""

from dataclasses import dataclass, replace

import psutil

from whet.core.workload import ExaminedWorkload
from whet.errors import OptionError
from whet.measure.cgroup import cpu_quota
from whet.measure.cores import allowed_cores
from whet.measure.machine import Limits, Machine
from whet.profiling.model import Profile
from whet.profiling.model.diagnosis import speedup_bound
from whet.techniques.technique import Applicability, Applies, Candidate, NotApplicable, OptionSpace, Stage, Technique


def thread_counts() -> tuple[int, ...]:
    """Return the thread counts to try: the physical cores, half of them, and one.

    Cores that this process may not use, and those beyond its CPU quota, don't count.
    """
    usable = len(allowed_cores())
    physical = min(psutil.cpu_count(logical=False) or usable, usable, cpu_quota() or usable)
    return tuple(dict.fromkeys((physical, max(1, physical // 2), 1)))


_ALONE_OVER_ALL = 1.5  # how much faster a core's clock may be while others rest, at the most

_SPACE: OptionSpace = {"num_threads": thread_counts()}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Hold the options of threads.

    Attributes:
        num_threads: The number of intra-op threads of the process that runs the model.
    """

    num_threads: int = _SPACE["num_threads"][0]


def check(examined: ExaminedWorkload, machine: Machine, options: Options) -> Applicability:
    if examined.device_type != "cpu":
        return NotApplicable("the model runs on the GPU; PyTorch's threads compute on the CPU alone")
    if machine.cores == machine.torch_threads == 1:
        return NotApplicable("the machine has one core")
    if options.num_threads > machine.cores:
        return NotApplicable(f"{options.num_threads} threads are more than this machine's {machine.cores} cores")
    if options.num_threads == machine.torch_threads:
        return NotApplicable(f"PyTorch uses {machine.torch_threads} threads already")
    return Applies(f"{options.num_threads} instead of {machine.torch_threads} threads")


def predict(profile: Profile, limits: Limits, options: Options) -> float:
    """Return the highest possible speedup. What keeps layers from these cores' limit counts as waiting of threads."""
    return speedup_bound(profile, of_threads(limits, options.num_threads), dtype=profile.dtype, removes_overhead=True)


def of_threads(limits: Limits, num_threads: int) -> Limits:
    """Return the limits with products at what so many cores may reach. One may read as fast as all."""
    share = min(1.0, _ALONE_OVER_ALL * max(1, num_threads) / thread_counts()[0])
    return replace(limits, gemm={dtype: share * rate for dtype, rate in limits.gemm.items()})


def apply(candidate: Candidate, options: Options) -> Candidate:
    """Return the candidate, to be run on that many threads once it is loaded.

    Raises:
        OptionError: The number is below 1.
    """
    if options.num_threads < 1:
        raise OptionError(f"num_threads must be at least 1, not {options.num_threads}")
    return replace(candidate, num_threads=options.num_threads)


TECHNIQUE = Technique(
    name="threads",
    stage=Stage.RUNTIME,
    order=10,
    card=__doc__,
    options=Options,
    check=check,
    predict=predict,
    apply=apply,
    space=_SPACE,
    runs_python=True,
)
