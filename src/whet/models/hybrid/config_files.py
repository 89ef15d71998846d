"""Read a config.json of a family of hybrid models: LFM2, Granite 4 (dense), Bamba, Falcon-H1, Nemotron-H.

A type for each family holds the fields that decide what is computed, with transformers' names and defaults, and maps
them onto a HybridConfig. Settings that would change the computation in a way that the model does not support are
refused.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from whet.models.config_file import Layers, Positive, Size, check_model_type, read_json, validated
from whet.models.hybrid.config import GateOrder, HybridConfig, Multipliers
from whet.models.hybrid.file_types import Factor, HybridFile, MambaFile, mixers_of


class Lfm2File(HybridFile):
    """Hold what a config.json of LFM2 says. Source: transformers, models/lfm2."""

    rope_theta: ClassVar[float] = 1_000_000.0
    unread: ClassVar[tuple[str, ...]] = ("attention_bias", "mlp_bias")
    names: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"norm_eps": "rms_norm_eps", "tie_embedding": "tie_word_embeddings", "block_ff_dim": "intermediate_size"}
    )

    vocab_size: Size = 65536
    hidden_size: Size = 2560
    intermediate_size: Size = 12288
    max_position_embeddings: Size = 128_000
    tie_word_embeddings: bool = True
    conv_bias: bool = False
    conv_L_cache: Annotated[int, Field(gt=1, le=64)] = 3
    block_multiple_of: Size = 256
    block_ffn_dim_multiplier: Positive = 1.0
    block_auto_adjust_ff_dim: bool = True
    full_attn_idxs: tuple[int, ...] | None = None
    layer_types: tuple[str, ...] | None = None

    def keys(self) -> dict[str, Any]:
        keys = super().keys()
        keys["norm_eps"] = keys.pop("rms_norm_eps")
        return keys

    @property
    def mlp_width(self) -> int:
        if not self.block_auto_adjust_ff_dim:
            return self.intermediate_size
        width = int(self.block_ffn_dim_multiplier * int(2 * self.intermediate_size / 3))
        return -(-width // self.block_multiple_of) * self.block_multiple_of

    def plan(self) -> HybridConfig:
        types = self.layer_types
        if types is None:
            full = range(self.num_hidden_layers) if self.full_attn_idxs is None else self.full_attn_idxs
            types = tuple("full_attention" if i in full else "conv" for i in range(self.num_hidden_layers))
        return self.planned(
            mixers_of(types, self.num_hidden_layers, ("attention", "conv")),
            decoder=self.decoder("qwen3", intermediate_size=self.mlp_width),
            conv_taps=self.conv_L_cache,
            conv_bias=self.conv_bias,
        )


class GraniteFile(MambaFile):
    """Hold what a config.json of Granite 4 says. Source: transformers, models/granitemoehybrid."""

    unread: ClassVar[tuple[str, ...]] = ("mlp_bias",)

    vocab_size: Size = 32000
    intermediate_size: Size = 11008
    num_key_value_heads: Size = 32
    max_position_embeddings: Size = 2048
    rms_norm_eps: Positive = 1e-6
    embedding_multiplier: Factor = 1.0
    logits_scaling: Positive = 1.0
    residual_multiplier: Factor = 1.0
    attention_multiplier: Factor = 1.0
    num_local_experts: int = 8
    shared_intermediate_size: Size = 1024
    position_embedding_type: str | None = None
    layer_types: tuple[str, ...] | None = None

    @classmethod
    def rename(cls, config: dict[str, Any]) -> None:
        super().rename(config)
        config.setdefault("num_key_value_heads", None)  # as many as there are heads
        if "layers_block_type" in config:
            config.setdefault("layer_types", config["layers_block_type"])

    def plan(self) -> HybridConfig:
        if self.num_local_experts:
            raise ValueError(
                f"num_local_experts is {self.num_local_experts}: mixtures of experts are not supported; whet runs the "
                "dense models of this family"
            )
        if self.position_embedding_type not in (None, "nope", "rope"):
            raise ValueError(f"position_embedding_type {self.position_embedding_type!r} is neither nope nor rope")
        added = self.residual_multiplier
        return self.planned(
            mixers_of(self.layer_types, self.num_hidden_layers, ("attention", "mamba")),
            decoder=self.decoder(intermediate_size=self.shared_intermediate_size),
            has_rotary=self.position_embedding_type == "rope",
            multipliers=Multipliers(
                scores=self.attention_multiplier,
                embedding=self.embedding_multiplier,
                logits=1 / self.logits_scaling,
                attention_out=added,
                mamba_out=added,
                mlp_out=added,
            ),
        )


class BambaFile(MambaFile):
    """Hold what a config.json of Bamba says. Source: transformers, models/bamba."""

    max_position_embeddings: Size = 262_144
    attn_layer_indices: tuple[int, ...] = ()
    rotates_partly: ClassVar[bool] = True

    @classmethod
    def rename(cls, config: dict[str, Any]) -> None:
        super().rename(config)
        config["partial_rotary_factor"] = 0.5  # whatever the file says

    def plan(self) -> HybridConfig:
        full = self.attn_layer_indices
        types = tuple("full_attention" if i in full else "mamba" for i in range(self.num_hidden_layers))
        return self.planned(mixers_of(types, self.num_hidden_layers, ("attention", "mamba")))


class FalconH1File(MambaFile):
    """Hold what a config.json of Falcon-H1 says. Source: transformers, models/falcon_h1."""

    max_position_embeddings: Size = 8192
    mamba_d_ssm: Size = 1024
    mamba_norm_before_gate: bool = True
    mamba_rms_norm: bool = False
    projectors_bias: bool = False
    lm_head_multiplier: Factor = 1.0
    embedding_multiplier: Factor = 1.0
    mlp_multipliers: tuple[Factor, Factor] = (1.0, 1.0)
    key_multiplier: Factor = 1.0
    attention_out_multiplier: Factor = 1.0
    attention_in_multiplier: Factor = 1.0
    ssm_multipliers: tuple[Factor, Factor, Factor, Factor, Factor] = (1.0,) * 5
    ssm_in_multiplier: Factor = 1.0
    ssm_out_multiplier: Factor = 1.0

    @classmethod
    def rename(cls, config: dict[str, Any]) -> None:
        super().rename(config)
        if config.get("mamba_d_ssm", 0) is None:
            expand, hidden = config.get("mamba_expand", 2), config.get("hidden_size", 4096)
            if not isinstance(expand, int | float) or not isinstance(hidden, int):
                raise ValueError("mamba_expand and hidden_size are no numbers")
            config["mamba_d_ssm"] = expand * hidden

    def plan(self) -> HybridConfig:
        order: GateOrder = "norm, then gate" if self.mamba_norm_before_gate else "gate, then norm"
        return self.planned(
            (("attention", "mamba"),) * self.num_hidden_layers,
            mamba=self.mamba(self.mamba_d_ssm),
            gate_order=order if self.mamba_rms_norm else "gate",
            mamba_out_bias=self.projectors_bias,
            multipliers=Multipliers(
                scores=self.key_multiplier * self.head_dim**-0.5,
                embedding=self.embedding_multiplier,
                logits=self.lm_head_multiplier,
                attention_in=self.attention_in_multiplier,
                attention_out=self.attention_out_multiplier,
                mamba_in=self.ssm_in_multiplier,
                mamba_parts=self.ssm_multipliers,
                mamba_out=self.ssm_out_multiplier,
                mlp_gate=self.mlp_multipliers[0],
                mlp_out=self.mlp_multipliers[1],
            ),
        )


class NemotronHFile(MambaFile):
    """Hold what a config.json of Nemotron-H says. Source: transformers, models/nemotron_h.

    Step sizes are limited by time_step_limit, as in the original code. transformers takes time_step_min as the least
    one in prefill, but not in decode: https://github.com/huggingface/transformers/issues/48989.
    """

    vocab_size: Size = 131_072
    intermediate_size: Size = 21504
    num_hidden_layers: Layers = 4
    head_dim: Size = 128
    max_position_embeddings: Size = 4096
    mamba_d_head: Size | Literal["auto"] = 64
    mamba_n_groups: Size = 8
    mamba_d_state: Size = 128
    mlp_hidden_act: Literal["relu2"] = "relu2"
    mamba_hidden_act: Literal["silu"] = "silu"
    layer_types: tuple[str, ...] = ("mamba", "moe", "attention", "mlp")

    unread: ClassVar[tuple[str, ...]] = ("attention_bias", "mamba_proj_bias")
    names: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "layer_norm_epsilon": "rms_norm_eps",
            "ssm_state_size": "mamba_d_state",
            "mamba_num_heads": "mamba_n_heads",
            "mamba_head_dim": "mamba_d_head",
            "n_groups": "mamba_n_groups",
            "conv_kernel": "mamba_d_conv",
            "use_conv_bias": "mamba_conv_bias",
            "use_bias": "mamba_proj_bias",
            "layers_block_type": "layer_types",
        }
    )

    @classmethod
    def rename(cls, config: dict[str, Any]) -> None:
        super().rename(config)
        config.setdefault("head_dim", 128)
        pattern = config.get("hybrid_override_pattern")
        if config.get("layer_types") is None and isinstance(pattern, str):
            config["layer_types"] = [_OF_PATTERN.get(letter, letter) for letter in pattern]
        types = config.get("layer_types")
        config["num_hidden_layers"] = len(types) if isinstance(types, list | tuple) else 4

    def keys(self) -> dict[str, Any]:
        keys = {**super().keys(), "layer_types": list(self.layer_types)}
        return {key: value for key, value in keys.items() if key not in self.names.values()} | {
            theirs: keys[ours] for theirs, ours in self.names.items()
        }

    def plan(self) -> HybridConfig:
        if "moe" in self.layer_types:
            raise ValueError("layer_types has 'moe': mixtures of experts are not supported")
        is_mlp = [name == "mlp" for name in self.layer_types]
        types = tuple("mamba" if name == "mlp" else name for name in self.layer_types)
        mixers = mixers_of(types, self.num_hidden_layers, ("attention", "mamba"))
        if self.mamba_d_head == "auto":
            raise ValueError("mamba_head_dim is not a number")
        return self.planned(
            tuple(() if mlp else found for mlp, found in zip(is_mlp, mixers, strict=True)),
            mlp="squared relu",
            mlp_layers=frozenset(index for index, mlp in enumerate(is_mlp) if mlp),
            has_rotary=False,
            mamba=self.mamba(self.mamba_n_heads * self.mamba_d_head),
        )


_OF_PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}

FILES: Mapping[str, type[HybridFile]] = MappingProxyType(
    {
        "lfm2": Lfm2File,
        "granitemoehybrid": GraniteFile,
        "bamba": BambaFile,
        "falcon_h1": FalconH1File,
        "nemotron_h": NemotronHFile,
    }
)
"""The type of config.json of each family."""
MODEL_TYPES: tuple[str, ...] = tuple(FILES)


def read_config(directory: Path | str) -> HybridConfig:
    """Read the config.json of a Hugging Face directory.

    Raises:
        TargetError: It is missing, damaged, or of another family, or asks for what the model does not support.
    """
    raw = read_json(directory)
    check_model_type(directory, raw, MODEL_TYPES, "the families of hybrid models are")
    return validated(directory, FILES[raw["model_type"]], raw).plan()
