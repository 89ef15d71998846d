"""Compile the model with torch's inductor: fused loops and prepacked weights instead of one operator after another.

What            engine=package: AOTInductor compiles once, into a package that loads in milliseconds and needs no
                compiler. engine=jit: torch.compile as it is usually called; every process compiles again.
                engine=cudagraphs: as jit on a GPU, where each call is replayed as one CUDA graph. freezing: weights
                become constants that are prepacked for the chip's matrix units. max_autotune: inductor times templates
                of matrix products against the library's and takes the fastest.
When it helps   Many small operators. Products in bfloat16 and int8, whose weights freezing prepacks. int8 graphs are
                fast only when compiled. A package has less overhead per call than torch.compile.
When it hurts   Compiling takes seconds to minutes, with max_autotune many minutes. Large float32 products gain nothing:
                the library computes them before and after. Freezing holds the weights in memory twice while it
                compiles.
Numerics        The same arithmetic in another order: within 1e-5 relative in float32.
Composes        After every structure, precision and layout technique; alone in its group (backend).
Source          Ansel et al., "PyTorch 2", ASPLOS 2024; torch._inductor.aoti_compile_and_package, torch.compile.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from whet.core.artefact import inductor, program
from whet.core.workload import ExaminedWorkload
from whet.errors import OptionError
from whet.measure.machine import Machine
from whet.profiling.model.diagnosis import speedup_bound
from whet.techniques.technique import (
    BACKEND,
    Applicability,
    Applies,
    Candidate,
    NotApplicable,
    OptionSpace,
    Stage,
    Technique,
)

_SPACE: OptionSpace = {
    "engine": ("package", "jit", "cudagraphs"),
    "freezing": (True, False),
    "max_autotune": (False, True),
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Hold the options of inductor.

    Attributes:
        engine: "package", "jit" or "cudagraphs".
        freezing: Whether weights become constants of the compiled code.
        max_autotune: Whether inductor times templates of matrix products to choose the fastest.
    """

    engine: str = "package"
    freezing: bool = True
    max_autotune: bool = False


def check(examined: ExaminedWorkload, machine: Machine, options: Options) -> Applicability:
    if options.engine not in _SPACE["engine"]:
        raise OptionError(f"engine must be one of {', '.join(_SPACE['engine'])}, not {options.engine!r}")
    device = examined.device_type
    if options.engine == "cudagraphs" and device != "cuda":
        return NotApplicable("engine=cudagraphs replays CUDA graphs; the inputs are on the CPU")
    if missing := inductor.missing_tools(at_load=options.engine != "package", device=device):
        return NotApplicable(missing)
    return Applies("compiled once, ahead of time" if options.engine == "package" else "compiled in every process")


def favours(examined: ExaminedWorkload) -> Mapping[str, Any]:
    """Have CUDA graphs tried first on a GPU: a package takes longer to compile there, and gains less on small calls."""
    return {"engine": "cudagraphs"} if examined.device_type == "cuda" else {}


def apply(candidate: Candidate, options: Options) -> Candidate:
    examined = candidate.examined
    if options.engine == "package":
        compiled = inductor.InductorRuntime.compile(
            candidate.module, examined, freezing=options.freezing, max_autotune=options.max_autotune
        )
        return candidate.with_runtime(compiled)
    runtime = inductor.CompileRuntime(
        program.export(candidate.module, examined),
        freezing=options.freezing,
        max_autotune=options.max_autotune,
        reduce_overhead=options.engine == "cudagraphs",
        is_dynamic=examined.signature.is_dynamic,
    )
    return candidate.with_runtime(runtime)


TECHNIQUE = Technique(
    name="inductor",
    stage=Stage.BACKEND,
    order=10,
    card=__doc__,
    options=Options,
    check=check,
    predict=lambda profile, limits, options: speedup_bound(profile, limits, dtype=profile.dtype, removes_overhead=True),
    apply=apply,
    space=_SPACE,
    groups=frozenset({BACKEND}),
    favours=favours,
    compiles=True,
)
