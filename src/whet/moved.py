"""Keep modules that have moved importable at their old places for one version; what is taken from there warns."""

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

PLACES = {
    "whet.artefact": "whet.core.artefact",
    "whet.asgi_server": "whet.ui.asgi_server",
    "whet.auditing": "whet.scripts.auditing",
    "whet.batching": "whet.server.batching",
    "whet.behaviour": "whet.core.side_effects",
    "whet.benchmark": "whet.comparison.bench",
    "whet.bounds": "whet.profiling.bounds",
    "whet.card_sections": "whet.ui.card_sections",
    "whet.charts": "whet.ui.charts",
    "whet.fast_import": "whet.measure.fast_import",
    "whet.figures": "whet.ui.figures",
    "whet.fix_trials": "whet.scripts.audit_measure",
    "whet.html_tables": "whet.ui.html_tables",
    "whet.kernels.chance_rounding": "whet.kernels.stochastic_rounding",
    "whet.load_test": "whet.server.load_test",
    "whet.look": "whet.ui.page_style",
    "whet.machine": "whet.measure.machine",
    "whet.models.memory_bank.test_time": "whet.models.memory_bank.inference_learning",
    "whet.monitor": "whet.scripts.monitor",
    "whet.network": "whet.ui.network",
    "whet.profiler": "whet.profiling.model",
    "whet.quantisation": "whet.techniques.quantisation",
    "whet.recipe": "whet.core.recipe",
    "whet.rewriting": "whet.techniques.rewriting",
    "whet.samplers": "whet.models.samplers",
    "whet.scripted": "whet.core.scripted",
    "whet.scripts": "whet.scripts.injection",
    "whet.server.batcher": "whet.server.batching.batcher",
    "whet.server.http.intake": "whet.server.http.admission",
    "whet.server.http.reading": "whet.server.http.request_parsing",
    "whet.server.http.reading_process": "whet.server.http.request_parsing_process",
    "whet.server.structure": "whet.server.output_constraint",
    "whet.signature": "whet.core.signature",
    "whet.slo": "whet.core.slo",
    "whet.step_profiler": "whet.profiling.step",
    "whet.stream_tuner": "whet.tuner.streams",
    "whet.stream_tuner.denoiser": "whet.tuner.streams.submodels",
    "whet.streamer.degrading": "whet.streamer.quality_controller",
    "whet.streamer.replaced": "whet.streamer.module_swaps",
    "whet.streamer.stillness": "whet.streamer.frame_skip_filter",
    "whet.structure": "whet.core.pytree",
    "whet.target_profiler": "whet.tuner.target_profile",
    "whet.technique": "whet.techniques.technique",
    "whet.tokenizer_files": "whet.core.tokenizer_files",
    "whet.trace_profiler": "whet.profiling.trace",
    "whet.traces": "whet.profiling.trace",
    "whet.trainer.journal": "whet.trainer.metrics_log",
    "whet.trainer.toml_file": "whet.core.toml_file",
    "whet.training": "whet.techniques.mechanisms",
    "whet.training.aligned_layers": "whet.techniques.mechanisms.padded_dimensions",
    "whet.training.applied": "whet.techniques.applied",
    "whet.training.attention_calls": "whet.techniques.mechanisms.packing.attention_calls",
    "whet.training.checkpoints": "whet.trainer.checkpoints",
    "whet.training.compile_time": "whet.techniques.costs.compile_time",
    "whet.training.divergence": "whet.techniques.proof.divergence",
    "whet.training.exchanged_updates": "whet.techniques.mechanisms.optimizer_wrapper",
    "whet.training.first_update": "whet.techniques.proof.first_update",
    "whet.training.gradients": "whet.techniques.proof.gradients",
    "whet.training.host_gradients": "whet.techniques.mechanisms.cpu_offloaded_gradients",
    "whet.training.layer_profile": "whet.techniques.costs.layer_profile",
    "whet.training.loss_proof": "whet.techniques.proof.loss_proof",
    "whet.training.masters": "whet.techniques.mechanisms.master_weights",
    "whet.training.memory": "whet.techniques.costs.memory",
    "whet.training.not_finite": "whet.techniques.proof.not_finite",
    "whet.training.packed_attention": "whet.techniques.mechanisms.packing.packed_attention",
    "whet.training.packed_masks": "whet.techniques.mechanisms.packing.packed_masks",
    "whet.training.packed_models": "whet.techniques.mechanisms.packing.packed_models",
    "whet.training.packed_operator": "whet.techniques.mechanisms.packing.packed_operator",
    "whet.training.packing": "whet.techniques.mechanisms.packing.packing",
    "whet.training.product_attention": "whet.techniques.mechanisms.packing.unfused_attention",
    "whet.training.pruning.gradual": "whet.trainer.gradual_pruning",
    "whet.training.saved_activations": "whet.techniques.costs.saved_activations",
    "whet.training.sensitivity": "whet.techniques.proof.sensitivity",
    "whet.training.step_profile": "whet.techniques.costs.step_profile",
    "whet.training.technique": "whet.techniques.training_technique",
    "whet.training.tokens": "whet.trainer.tokens",
    "whet.training.updates": "whet.techniques.proof.updates",
    "whet.training.within_documents": "whet.techniques.mechanisms.packing.document_masking",
    "whet.tuner.outlook": "whet.tuner.budget_plan",
    "whet.tuner.training.points": "whet.tuner.points",
    "whet.units": "whet.ui.units",
    "whet.workflow_commands": "whet.ui.workflow_commands",
    "whet.workload": "whet.core.workload",
    "whet.workloads.fine_tuning": "whet.workloads.target",
}
"""Where modules were in version 0.1 -> where they are; what lay in them went along, unless it has a line of its own."""

RENAMED = {
    "whet.kernels.chance_rounding": {"rounded_by_chance": "rounded_stochastically"},
    "whet.server.structure": {"Structure": "OutputConstraint"},
    "whet.streamer.stillness": {"StillnessFilter": "FrameSkipFilter"},
    "whet.structure": {"Structure": "PyTree"},
    "whet.trainer.journal": {"Journal": "MetricsLog"},
    "whet.tuner.outlook": {"Outlook": "BudgetPlan"},
}
"""What is called otherwise in a module that has moved, by the old place."""


def new_place(name: str) -> str | None:
    """Return where a module is now, by the longest old place that its name begins with; None where none does."""
    old = name
    while old:
        if old in PLACES:
            is_new = f"{name}.".startswith(f"{PLACES[old]}.")  # as whet.scripts.injection, which is below whet.scripts
            return None if is_new else PLACES[old] + name.removeprefix(old)
        old = old.rpartition(".")[0]
    return None


class OldPlaces:
    """Find a module at its old place, once nobody else knows its name: Python's protocol for `sys.meta_path`."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return what Python needs to make a module of the old name; None where there never was one."""
        if not name.startswith("whet.") or (place := new_place(name)) is None:
            return None
        from importlib.util import find_spec  # here, since `import whet` imports next to nothing

        try:
            found = find_spec(place)
        except ModuleNotFoundError:
            return None
        if found is None:
            return None
        is_package = found.submodule_search_locations is not None
        return ModuleSpec(name, self, origin=place, is_package=is_package)  # type: ignore[arg-type]  # of importlib.abc

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to Python to make the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Have the module of the old name hand on, with a warning, what the one of the new name has."""
        name, spec = module.__name__, module.__spec__
        assert spec is not None and spec.origin is not None
        place, real = spec.origin, import_module(spec.origin)

        def handed_on(wanted: str) -> Any:
            now = RENAMED.get(name, {}).get(wanted, wanted)
            if not hasattr(real, now):
                raise AttributeError(f"module {name!r} has no attribute {wanted!r}")
            if not wanted.startswith("__"):
                message = f"{name}.{wanted} has moved to {place}.{now}; the old name goes with the next version"
                warnings.warn(message, DeprecationWarning, stacklevel=2)
            return getattr(real, now)

        vars(module)["__getattr__"] = handed_on


def keep_old_places() -> None:
    if not any(isinstance(finder, OldPlaces) for finder in sys.meta_path):
        sys.meta_path.append(OldPlaces())
