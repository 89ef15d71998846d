"""Make hybrid models with new weights, and say how they are trained."""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from torch import Tensor

from whet.models.hybrid.config import HybridConfig
from whet.models.hybrid.config_files import FILES, NemotronHFile
from whet.models.hybrid.files import file_name, to_files
from whet.models.hybrid.reference import Hybrid, initialise
from whet.models.trainable import Trainable

_ARCHITECTURES = {
    "lfm2": "Lfm2ForCausalLM",
    "granitemoehybrid": "GraniteMoeHybridForCausalLM",
    "bamba": "BambaForCausalLM",
    "falcon_h1": "FalconH1ForCausalLM",
    "nemotron_h": "NemotronHForCausalLM",
}
_ALSO_KNOWN = {"rope_theta", "rope_scaling"}
_ALSO_KNOWN_IN = {
    "lfm2": {"norm_eps", "block_ff_dim"},
    "granitemoehybrid": {"layers_block_type"},
    "nemotron_h": {*NemotronHFile.names, "hybrid_override_pattern", "time_step_min"},
}
_ONE_MATRIX = "its file holds gate_proj and up_proj as one matrix, and peft would take them for one"
_NOT_ADAPTED = {"granitemoehybrid": {"gate_proj": _ONE_MATRIX, "up_proj": _ONE_MATRIX}}


class _TrainableHybrid(Trainable):
    """Say how a family of hybrid models is trained. Its files may hold two matrices in one tensor."""

    def in_files(self, config: HybridConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return to_files(config, weights)


def _trainable(model_type: str) -> Trainable:
    return _TrainableHybrid(
        config=FILES[model_type],
        also_known=frozenset(_ALSO_KNOWN | _ALSO_KNOWN_IN.get(model_type, set())),
        build=lambda file: Hybrid(file.plan()),
        initialise=initialise,
        file_name=partial(file_name, model_type),
        config_json=lambda config: dict(config.keys),
        architectures=_ARCHITECTURES,
        packing="documents",
        max_tokens=lambda config: int(config.max_position_embeddings),
        dropped=("AttentionWithPast", "ScaledMamba", "ShortConv", "GatedMLP", "SquaredMLP"),
        not_adapted=_NOT_ADAPTED.get(model_type, {}),
        size_keys=("hidden_size", "intermediate_size", "num_hidden_layers"),
    )


TRAINABLE: Mapping[str, Trainable] = MappingProxyType({name: _trainable(name) for name in FILES})
"""Say how each family is trained."""
