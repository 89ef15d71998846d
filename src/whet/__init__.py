"""whet makes PyTorch models fast on the machine at hand, and proves it.

`import whet` does nothing: no torch, no flag, no device query. The public names load when first used.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "tune": "whet.tuner.tuning",
    "apply": "whet.tuner.apply",
    "Result": "whet.tuner.result",
    "bench": "whet.benchmark.sweep",
    "compare": "whet.comparison.targets",
    "compare_with": "whet.benchmark.against",
    "profile": "whet.profiler.session",
    "watch": "whet.step_profiler.watch",
    "load": "whet.artefact",
    "Artefact": "whet.artefact",
    "Claim": "whet.comparison.claim",
    "Workload": "whet.workload",
    "InferenceWorkload": "whet.workload",
    "TrainingWorkload": "whet.workload",
    "GenerationWorkload": "whet.workload",
    "StreamWorkload": "whet.workload",
    "Quality": "whet.workload",
    "Recipe": "whet.recipe",
    "Machine": "whet.machine",
    "describe": "whet.machine",
    "Monitor": "whet.monitor",
    "Engine": "whet.server.engine",
    "EngineOptions": "whet.server.options",
    "SamplingParams": "whet.server.sampling_params",
    "register_kernel": "whet.kernels.register",
    "DynamicBatcher": "whet.batching.batcher",
    "WhetError": "whet.errors",
}

__all__ = [*_PUBLIC, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'whet' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
