"""Keep freed memory in the process, so that each step does not fault its pages in again.

What            glibc's malloc takes blocks of 32 MB and more from the system in each step and gives them back after it.
                With these settings they come from its own heap, which keeps them (mallopt: M_MMAP_MAX,
                M_TRIM_THRESHOLD). Other kinds: jemalloc or tcmalloc, which must be loaded before everything else
                (LD_PRELOAD). `whet run` and `whet tune -- python train.py` start the script so; elsewhere it is only
                checked that the process was started so. On a GPU expandable_segments, with which PyTorch's allocator
                grows its segments in place of leaving gaps.
When it helps   Training on a CPU whose activations or logits are large blocks: the kernel zeroes every page of them.
When it hurts   The process keeps its peak. Fragments may raise that peak. Processes that the script starts load
                jemalloc or tcmalloc too.
Numerics        None: the same numbers.
Composes        With everything.
Source          glibc manual, "Malloc Tunable Parameters"; PyTorch issue 117429; PyTorch documentation, "Optimizing
                memory usage with PYTORCH_ALLOC_CONF"; ld.so(8) for LD_PRELOAD.
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from whet.errors import RecipeError
from whet.measure.machine import Limits, Machine
from whet.measure.malloc import PRELOAD, find, has_glibc, is_loaded, keep_all_memory, preloaded
from whet.techniques.costs.step_profile import StepProfile
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.technique import Applicability, Applies, NotApplicable, OptionSpace
from whet.techniques.training_technique import Exactness, TrainingStage, TrainingTechnique

_SPACE: OptionSpace = {"kind": ("keep", "jemalloc", "tcmalloc", "expandable_segments")}
_PACKAGES = {"jemalloc": "libjemalloc2", "tcmalloc": "libtcmalloc-minimal4"}  # of Debian and Ubuntu


@dataclass(frozen=True, kw_only=True)
class Options:
    """Hold the options of allocator.

    Attributes:
        kind: "keep" has glibc's malloc keep freed memory; "jemalloc" and "tcmalloc" are other libraries, with which
            the process must be started; "expandable_segments" sets up the allocator of a GPU.
    """

    kind: str = "keep"


def check(parts: Parts, machine: Machine, options: Options) -> Applicability:
    """Check that tensors lie in memory of the allocator that is to be set up."""
    if options.kind not in _SPACE["kind"]:
        return NotApplicable(f"kind must be one of {', '.join(_SPACE['kind'])}, not {options.kind!r}")
    if options.kind == "expandable_segments":
        if parts.device_type != "cuda":
            return NotApplicable("the model is on the CPU; segments are those of a GPU's memory")
        return Applies("PyTorch's segments of the GPU's memory can grow")
    if parts.device_type != "cpu":
        return NotApplicable("the model is on the GPU, whose memory PyTorch keeps already")
    if options.kind != "keep":
        return _loaded(options.kind)
    if not has_glibc():
        return NotApplicable("the process does not use glibc's malloc")
    return Applies("freed memory stays in the process")


def _loaded(library: str) -> Applicability:
    """Check that this process uses another malloc; if not, say how it is started with it."""
    if is_loaded(library):
        return Applies(f"{library} is loaded")
    for name in preloaded():
        if library in Path(name).name:
            return NotApplicable(f"LD_PRELOAD names {name}, but this process does not use it; is it a whole {library}?")
    path = find(library)
    if path is None:
        return NotApplicable(_not_installed(library))
    return NotApplicable(
        f"{library} must be loaded before everything else: start the program as LD_PRELOAD={path} python ...",
        at_start=True,
    )


def _not_installed(library: str) -> str:
    return f"{library} is not installed; on Debian and Ubuntu: apt install {_PACKAGES[library]}"


def environment(options: Options) -> dict[str, str]:
    """Return LD_PRELOAD with the library; nothing where this process uses it, since processes that it starts do too.

    Raises:
        RecipeError: The library is not installed.
    """
    if options.kind not in _PACKAGES or is_loaded(options.kind):
        return {}
    path = find(options.kind)
    if path is None:
        raise RecipeError(f"allocator cannot be applied here: {_not_installed(options.kind)}")
    return {PRELOAD: str(path)}


def predict(profile: StepProfile, limits: Limits, options: Options) -> float:
    """Return the highest possible speedup: what is neither arithmetic nor the optimiser is half page faults.

    Another malloc that is loaded already makes nothing faster than it is.
    """
    if options.kind in _PACKAGES:
        return 1.0
    return profile.bound(other_s=profile.other_s / 2, loss_s=profile.loss_s / 2, products_s=0.9 * profile.products_s)


def apply(parts: Parts, options: Options) -> Parts:
    if options.kind == "keep":
        keep_all_memory()
    elif options.kind == "expandable_segments":
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
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
    keeps_dropout=True,
    space=_SPACE,
    environment=environment,
)
