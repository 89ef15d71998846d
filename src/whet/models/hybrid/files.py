"""Read and name the weights of hybrid models as they stand in files, and load readable models.

The names in the module are the same for all families. A table translates them to the names of each family's files.
Where a file has two matrices in one tensor, one below the other, both have the tensor's name.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from whet.models.hybrid.config import HybridConfig
from whet.models.hybrid.config_files import read_config
from whet.models.hybrid.reference import Hybrid
from whet.models.tensor_files import ModelFiles, Shape

_OF_BAMBA = {
    "norm.": "final_layernorm.",
    "post_attention_layernorm.": "pre_ff_layernorm.",
    "mlp.": "feed_forward.",
}
_RENAMED: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "lfm2": {
            "norm.": "embedding_norm.",
            "input_layernorm.": "operator_norm.",
            "post_attention_layernorm.": "ffn_norm.",
            "mlp.gate_proj.": "feed_forward.w1.",
            "mlp.up_proj.": "feed_forward.w3.",
            "mlp.down_proj.": "feed_forward.w2.",
            "self_attn.o_proj.": "self_attn.out_proj.",
            "self_attn.q_norm.": "self_attn.q_layernorm.",
            "self_attn.k_norm.": "self_attn.k_layernorm.",
        },
        "granitemoehybrid": {
            "mlp.gate_proj.": "shared_mlp.input_linear.",
            "mlp.up_proj.": "shared_mlp.input_linear.",
            "mlp.down_proj.": "shared_mlp.output_linear.",
        },
        "nemotron_h": {
            "embed_tokens.": "embeddings.",
            "norm.": "norm_f.",
            "input_layernorm.": "norm.",
            "post_attention_layernorm.": "norm.",
            "mamba.": "mixer.",
            "self_attn.": "mixer.",
            "mlp.": "mixer.",
        },
        "bamba": _OF_BAMBA,
        "falcon_h1": _OF_BAMBA,
    }
)
# Parameters that stay in float32 whatever the matrices are: rounding them changes what is remembered for how long.
_KEPT_WIDE = (
    *("A_log", ".D", "dt_bias", "conv1d.weight", "conv1d.bias", "conv.conv.weight", "conv.conv.bias"),
    *("layernorm.weight", "mamba.norm.weight"),
)


def file_name(model_type: str, name: str) -> str:
    """Return the name that a weight of the module has in the files of a family."""
    if name.startswith("lm_head."):
        return name
    parts = name.split(".", 2)
    layer, inner = (f"layers.{parts[1]}.", parts[2]) if parts[0] == "layers" else ("", name)
    for ours, theirs in _RENAMED[model_type].items():
        if inner.startswith(ours):
            inner = theirs + inner.removeprefix(ours)
            break
    prefix = "backbone" if model_type == "nemotron_h" else "model"
    return f"{prefix}.{layer}{inner}"


def to_files(config: HybridConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a module's weights, without a tied head's, by the names of files."""
    parts: dict[str, list[Tensor]] = defaultdict(list)
    for name in FILES.shapes(config):
        parts[file_name(config.model_type, name)].append(weights[name])
    return {name: tensors[0] if len(tensors) == 1 else torch.cat(tensors) for name, tensors in parts.items()}


class _HybridFiles(ModelFiles[HybridConfig, Hybrid]):
    def read(self, directory: Path | str, config: HybridConfig) -> dict[str, Tensor]:
        in_files: dict[str, Shape] = {}
        of_module = self.shapes_for(directory, config)
        shapes = {name: (file_name(config.model_type, name), shape) for name, shape in of_module.items()}
        for where, shape in shapes.values():
            known = in_files.get(where)
            in_files[where] = shape if known is None else (known[0] + shape[0], *shape[1:])

        def name_of(stored: str) -> str | None:
            if stored.endswith(".rotary_emb.inv_freq"):
                return None  # old files hold the rotary angles, which are computed
            if config.model_type == "nemotron_h" and stored.startswith("model."):
                return f"backbone.{stored.removeprefix('model.')}"  # some files have the prefix of the other families
            return stored

        of_family = replace(self, name_of=name_of, embedding=file_name(config.model_type, self.embedding))
        stored = of_family.read_as(in_files, directory, config)
        weights, used = {}, dict.fromkeys(in_files, 0)
        for name, (where, shape) in shapes.items():
            first = used[where]
            weights[name] = stored[where][first : first + shape[0]]
            used[where] = first + shape[0]
        return weights


FILES = _HybridFiles(
    read_config=read_config,
    build=Hybrid,
    name_of=str,
    is_wide=lambda name: name.endswith(_KEPT_WIDE) or name == "norm.weight",
)
"""Read hybrid models. Rates, step biases, convolutions and norms stay in float32."""

weight_shapes, read_weights, load_hybrid = FILES.shapes, FILES.read, FILES.load
