"""Read a config.json of a family of hybrid models: LFM2, Granite 4 (dense), Bamba, Falcon-H1.

A type for each family holds the fields that decide what is computed, with transformers' names and defaults, and maps
them onto a HybridConfig. Settings that would change the computation in a way that the model does not support are
refused.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from whet.models.config_file import check_model_type, read_json, validated
from whet.models.decoder.config import DecoderConfig, Rope, rope_parameters
from whet.models.hybrid.config import GateOrder, HybridConfig, Mixer, Multipliers
from whet.models.selective.config import SelectiveConfig, number_of

Size = Annotated[int, Field(gt=0, lt=2**31)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Factor = Annotated[float, Field(allow_inf_nan=False)]

_MIXERS: Mapping[str, Mixer] = MappingProxyType(
    {
        "full_attention": "attention",
        "attention": "attention",
        "linear_attention": "mamba",
        "mamba": "mamba",
        "conv": "conv",
    }
)


class _File(BaseModel):
    """Hold what the files of all families say. Other keys are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    rope_theta: ClassVar[float] = 10_000.0  # where the file names none
    rotates_partly: ClassVar[bool] = False

    model_type: str
    hidden_act: Literal["silu"] = "silu"
    vocab_size: Size
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Annotated[int, Field(gt=0, le=10_000)]
    num_attention_heads: Size
    num_key_value_heads: Size
    head_dim: Size
    max_position_embeddings: Size
    rms_norm_eps: Positive
    tie_word_embeddings: bool
    attention_bias: bool = False
    mlp_bias: bool = False
    rope_parameters: Rope

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, given: object) -> object:
        if not isinstance(given, dict):
            return given
        config = dict(given)
        cls.rename(config)
        if config.get("num_key_value_heads", 0) is None:
            config["num_key_value_heads"] = config.get(
                "num_attention_heads", cls.model_fields["num_attention_heads"].default
            )
        config = {key: value for key, value in config.items() if value is not None}
        if "quantization_config" in config:
            raise ValueError("quantization_config: whet reads only unquantised weights, and quantises them itself")
        for name in ("hidden_size", "num_attention_heads"):
            config.setdefault(name, cls.model_fields[name].default)
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        if isinstance(heads, int) and heads > 0 and isinstance(hidden, int):
            config.setdefault("head_dim", hidden // heads)
        config["rope_parameters"] = rope_parameters(config, partly=cls.rotates_partly)
        if isinstance(config["rope_parameters"], dict):
            config["rope_parameters"].setdefault("rope_theta", cls.rope_theta)
        return config

    @classmethod
    def rename(cls, config: dict[str, Any]) -> None:
        """Give fields that a family's files name otherwise the names here, in place."""

    def decoder(self, model_type: Literal["llama", "qwen3"] = "llama", **changes: Any) -> DecoderConfig:
        """Return the decoder whose attention and MLP the layers have. Of model_type qwen3, heads are normalised."""
        fields = {name: getattr(self, name) for name in _File.model_fields if name in DecoderConfig.model_fields}
        return DecoderConfig(**{**fields, "model_type": model_type, **changes})

    def plan(self) -> HybridConfig:
        """Return what the file describes.

        Raises:
            ValueError: Sizes do not fit each other, or something is not supported.
        """
        raise NotImplementedError

    @model_validator(mode="after")
    def _check(self) -> "_File":
        try:
            self.plan()
        except ValidationError as error:  # of a type that the plan is made of
            raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from error
        return self


class _Lfm2(_File):
    """Hold what a config.json of LFM2 says. Source: transformers, models/lfm2."""

    rope_theta: ClassVar[float] = 1_000_000.0

    vocab_size: Size = 65536
    hidden_size: Size = 2560
    intermediate_size: Size = 12288
    num_hidden_layers: Annotated[int, Field(gt=0, le=10_000)] = 32
    num_attention_heads: Size = 32
    num_key_value_heads: Size = 8
    max_position_embeddings: Size = 128_000
    rms_norm_eps: Positive = 1e-5
    tie_word_embeddings: bool = True
    conv_bias: bool = False
    conv_L_cache: Annotated[int, Field(gt=0, le=64)] = 3
    block_multiple_of: Size = 256
    block_ffn_dim_multiplier: Positive = 1.0
    block_auto_adjust_ff_dim: bool = True
    full_attn_idxs: tuple[int, ...] | None = None
    layer_types: tuple[str, ...] | None = None

    @classmethod
    def rename(cls, config: dict[str, Any]) -> None:
        """Give fields that a family's files name otherwise the names here, in place."""
        for old, new in (
            ("norm_eps", "rms_norm_eps"),
            ("tie_embedding", "tie_word_embeddings"),
            ("block_ff_dim", "intermediate_size"),
        ):
            if old in config:
                config[new] = config[old]
        config.pop("attention_bias", None)  # transformers reads neither
        config.pop("mlp_bias", None)

    @property
    def mlp_width(self) -> int:
        """Return the inner width of the MLPs."""
        if not self.block_auto_adjust_ff_dim:
            return self.intermediate_size
        width = int(self.block_ffn_dim_multiplier * int(2 * self.intermediate_size / 3))
        return -(-width // self.block_multiple_of) * self.block_multiple_of

    def plan(self) -> HybridConfig:
        """Return what the file describes."""
        types = self.layer_types
        if types is None:
            full = range(self.num_hidden_layers) if self.full_attn_idxs is None else self.full_attn_idxs
            types = tuple("full_attention" if i in full else "conv" for i in range(self.num_hidden_layers))
        return HybridConfig(
            model_type=self.model_type,
            mixers=_mixers(types, self.num_hidden_layers, ("attention", "conv")),
            decoder=self.decoder("qwen3", intermediate_size=self.mlp_width),
            multipliers=Multipliers(scores=self.head_dim**-0.5),
            conv_taps=self.conv_L_cache,
            conv_bias=self.conv_bias,
        )


class _WithMamba(_File):
    """Hold what the files of families with Mamba-2 say."""

    mamba_n_heads: Size = 128
    mamba_d_head: Size | Literal["auto"] = "auto"
    mamba_n_groups: Size = 1
    mamba_d_state: Size = 256
    mamba_d_conv: Annotated[int, Field(gt=0, le=64)] = 4
    mamba_expand: Size = 2
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False
    time_step_limit: tuple[float, float] = (0.0, math.inf)

    @classmethod
    def rename(cls, config: dict[str, Any]) -> None:
        """Give fields that a family's files name otherwise the names here, in place."""
        if isinstance(limits := config.get("time_step_limit"), list):
            config["time_step_limit"] = tuple(number_of(limit) for limit in limits)

    def mamba(self, inner: int | None = None) -> SelectiveConfig:
        """Return the model whose mixers the layers have. `inner` is their inner width, by default as expanded."""
        inner = self.mamba_expand * self.hidden_size if inner is None else inner
        if inner % self.mamba_n_heads:
            raise ValueError(f"mamba_n_heads {self.mamba_n_heads} does not divide Mamba's inner width {inner}")
        width = inner // self.mamba_n_heads if self.mamba_d_head == "auto" else self.mamba_d_head
        if width * self.mamba_n_heads != inner:
            raise ValueError(
                f"mamba_n_heads {self.mamba_n_heads} times mamba_d_head {width} is not Mamba's inner width {inner}"
            )
        return SelectiveConfig(
            model_type="mamba2",
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            num_hidden_layers=self.num_hidden_layers,
            intermediate_size=inner,
            state_size=self.mamba_d_state,
            num_heads=self.mamba_n_heads,
            head_dim=width,
            n_groups=self.mamba_n_groups,
            conv_kernel=self.mamba_d_conv,
            use_conv_bias=self.mamba_conv_bias,
            use_bias=self.mamba_proj_bias,
            layer_norm_epsilon=self.rms_norm_eps,
            time_step_limit=self.time_step_limit,
        )


class _Granite(_WithMamba):
    """Hold what a config.json of Granite 4 says. Source: transformers, models/granitemoehybrid."""

    vocab_size: Size = 32000
    hidden_size: Size = 4096
    intermediate_size: Size = 11008
    num_hidden_layers: Annotated[int, Field(gt=0, le=10_000)] = 32
    num_attention_heads: Size = 32
    num_key_value_heads: Size = 32
    max_position_embeddings: Size = 2048
    rms_norm_eps: Positive = 1e-6
    tie_word_embeddings: bool = False
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
        """Give fields that a family's files name otherwise the names here, in place."""
        super().rename(config)
        config.setdefault("num_key_value_heads", None)  # as many as there are heads
        if "layers_block_type" in config:
            config.setdefault("layer_types", config["layers_block_type"])
        config.pop("mlp_bias", None)  # transformers does not read it

    def plan(self) -> HybridConfig:
        """Return what the file describes."""
        if self.num_local_experts:
            raise ValueError(
                f"num_local_experts is {self.num_local_experts}: mixtures of experts are not supported; whet runs the "
                "dense models of this family"
            )
        if self.position_embedding_type not in (None, "nope", "rope"):
            raise ValueError(f"position_embedding_type {self.position_embedding_type!r} is neither nope nor rope")
        added = self.residual_multiplier
        return HybridConfig(
            model_type=self.model_type,
            mixers=_mixers(self.layer_types, self.num_hidden_layers, ("attention", "mamba")),
            decoder=self.decoder(intermediate_size=self.shared_intermediate_size),
            has_rotary=self.position_embedding_type == "rope",
            mamba=self.mamba(),
            mamba_out_bias=self.mamba_proj_bias,
            multipliers=Multipliers(
                scores=self.attention_multiplier,
                embedding=self.embedding_multiplier,
                logits=1 / self.logits_scaling,
                attention_out=added,
                mamba_out=added,
                mlp_out=added,
            ),
        )


class _Bamba(_WithMamba):
    """Hold what a config.json of Bamba says. Source: transformers, models/bamba."""

    vocab_size: Size = 128_000
    hidden_size: Size = 4096
    intermediate_size: Size = 14336
    num_hidden_layers: Annotated[int, Field(gt=0, le=10_000)] = 32
    num_attention_heads: Size = 32
    num_key_value_heads: Size = 8
    max_position_embeddings: Size = 262_144
    rms_norm_eps: Positive = 1e-5
    tie_word_embeddings: bool = False
    attn_layer_indices: tuple[int, ...] = ()
    rotates_partly: ClassVar[bool] = True

    @classmethod
    def rename(cls, config: dict[str, Any]) -> None:
        """Give fields that a family's files name otherwise the names here, in place."""
        super().rename(config)
        config["partial_rotary_factor"] = 0.5  # whatever the file says

    def plan(self) -> HybridConfig:
        """Return what the file describes."""
        full = self.attn_layer_indices
        types = tuple("full_attention" if i in full else "mamba" for i in range(self.num_hidden_layers))
        return HybridConfig(
            model_type=self.model_type,
            mixers=_mixers(types, self.num_hidden_layers, ("attention", "mamba")),
            decoder=self.decoder(),
            mamba=self.mamba(),
            mamba_out_bias=self.mamba_proj_bias,
            multipliers=Multipliers(scores=self.head_dim**-0.5),
        )


class _FalconH1(_WithMamba):
    """Hold what a config.json of Falcon-H1 says. Source: transformers, models/falcon_h1."""

    vocab_size: Size = 128_000
    hidden_size: Size = 4096
    intermediate_size: Size = 14336
    num_hidden_layers: Annotated[int, Field(gt=0, le=10_000)] = 32
    num_attention_heads: Size = 32
    num_key_value_heads: Size = 8
    max_position_embeddings: Size = 8192
    rms_norm_eps: Positive = 1e-5
    tie_word_embeddings: bool = False
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
        """Give fields that a family's files name otherwise the names here, in place."""
        super().rename(config)
        if config.get("mamba_d_ssm", 0) is None:
            config["mamba_d_ssm"] = config.get("mamba_expand", 2) * config.get("hidden_size", 4096)

    def plan(self) -> HybridConfig:
        """Return what the file describes."""
        order: GateOrder = "norm, then gate" if self.mamba_norm_before_gate else "gate, then norm"
        return HybridConfig(
            model_type=self.model_type,
            mixers=(("attention", "mamba"),) * self.num_hidden_layers,
            decoder=self.decoder(),
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


_FILES: Mapping[str, type[_File]] = MappingProxyType(
    {"lfm2": _Lfm2, "granitemoehybrid": _Granite, "bamba": _Bamba, "falcon_h1": _FalconH1}
)
MODEL_TYPES: tuple[str, ...] = tuple(_FILES)


def read_config(directory: Path | str) -> HybridConfig:
    """Read the config.json of a Hugging Face directory.

    Raises:
        TargetError: It is missing or damaged, is of another family, or asks for something that the model does not
            support.
    """
    raw = read_json(directory)
    check_model_type(directory, raw, MODEL_TYPES, "the families of hybrid models are")
    return validated(directory, _FILES[raw["model_type"]], raw).plan()


def _mixers(types: tuple[str, ...] | None, num_layers: int, known: tuple[Mixer, ...]) -> tuple[tuple[Mixer, ...], ...]:
    """Return the mixers of each layer, from a file's layer_types; without them all are Mamba-2."""
    types = ("mamba",) * num_layers if types is None else types
    if len(types) != num_layers:
        raise ValueError(f"layer_types names {len(types)} layers of {num_layers}")
    for name in types:
        if _MIXERS.get(name) not in known:
            names = [key for key, mixer in _MIXERS.items() if mixer in known]
            raise ValueError(f"layer_types has {name!r}, which is none of {', '.join(names)}")
    return tuple((_MIXERS[name],) for name in types)
