"""Make PyTorch models fast on the machine at hand, and prove it.

`import whet` does nothing: it loads no torch, sets no flag and queries no device. The public names are declared in
`__init__.pyi`, beside this file, and load when they are first used. By what they are for:

    make a model fast         tune, load, apply, apply_recipe, Recipe, Result, Artefact
    what is made fast         Workload, InferenceWorkload, TrainingWorkload, GenerationWorkload, StreamWorkload, Quality
    measure and compare       bench, compare, Claim, compare_with, read_baseline, against_baseline
    what bounds a program     profile_target, profile, profile_step, profile_trace, profile_nvtx, watch, audit
    train                     train, TrainResult, prepare, prepare_trainer, tune_script, run_script, measure_fixes,
                              largest_batch, LargestBatch, micro_batches, BufferPool, monitor_command, Monitor,
                              parallelize, ParallelPlan
    plan                      plan, plan_serving
    serve                     serve, Engine, EngineOptions, SamplingParams, OutputConstraint, chat, bench_serve,
                              DynamicBatcher
    streams of frames         Stream, StreamOptions, tune_stream, StreamGoal
    this machine              describe, Machine, limits, doctor, list_techniques, describe_technique, register_kernel
    what the user can mend    WhetError
"""

from types import FunctionType
from typing import Any

import lazy_loader

from whet.moved import keep_old_places
from whet.notebook_views import register_views

__version__ = "0.1.0"

MEANT = {
    "optimize": "tune",
    "optimise": "tune",
    "autotune": "tune",
    "accelerate": "tune",
    "speedup": "tune",
    "quantize": "tune",
    "compile": "tune",
    "benchmark": "bench",
    "measure": "bench",
    "lint": "audit",
    "check": "doctor",
    "info": "doctor",
}
"""What people look for under another name -> what does it, as a function and as a command."""

RENAMED = {"Structure": "OutputConstraint"}
"""Public names of version 0.1 -> what they are called now."""

_load, _, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]
keep_old_places()
register_views()


def __getattr__(name: str) -> Any:
    """Load a public name, or say which one may be meant."""
    if name in RENAMED:
        import warnings

        message = f"whet.{name} is now called whet.{RENAMED[name]}; the old name goes with the next version"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        name = RENAMED[name]
    try:
        found = _load(name)
    except AttributeError as error:
        if name.startswith("_") or name in __all__:
            raise
        from difflib import get_close_matches  # here, since `import whet` imports next to nothing

        near = [MEANT[name]] if name in MEANT else get_close_matches(name, __all__, n=3)
        meant = " or ".join(f"whet.{one}" for one in near)
        hint = f"did you mean {meant}?" if near else "help(whet) lists what there is"
        raise AttributeError(f"No whet attribute {name}; {hint}", name=name) from error
    if isinstance(found, FunctionType):
        from whet.ui.signature_lines import show_by_line

        show_by_line(found)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
