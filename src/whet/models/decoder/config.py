"""Read a config.json of the Llama family: sizes, biases, rotary angles and sliding windows.

The fields and their defaults are those of transformers. A field that transformers ignores for a family, such as a
Llama's sliding_window, is ignored here too. Settings that would change the computation in a way that the decoder does
not support are refused.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from whet.models.config_file import HeadSize, Layers, Positive, Size, check_model_type, read_json, set_keys, validated

ModelType = Literal["llama", "mistral", "qwen2", "qwen3"]
MODEL_TYPES: tuple[str, ...] = get_args(ModelType)

# Each family's defaults for fields that config.json leaves out, where they differ from those of DecoderConfig.
_LEFT_OUT: Mapping[str, Mapping[str, object]] = {
    "llama": {"max_position_embeddings": 2048},
    "mistral": {"max_position_embeddings": 131_072, "sliding_window": 4096},
    "qwen2": {"max_position_embeddings": 32_768, "sliding_window": 4096, "max_window_layers": 28},
    "qwen3": {"max_position_embeddings": 32_768, "sliding_window": 4096, "max_window_layers": 28, "head_dim": 128},
}

# The families in which a field is read, for fields that not all families have.
_READ_IN: Mapping[str, tuple[str, ...]] = {
    "attention_bias": ("llama", "qwen3"),
    "mlp_bias": ("llama",),
    "sliding_window": ("mistral", "qwen2", "qwen3"),
    "layer_types": ("qwen2", "qwen3"),
}

_ROPE_NEEDS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}


class Rope(BaseModel):
    """Say how positions become angles. All types except default extend a model to texts longer than in its training.

    The type linear divides all frequencies by `factor`. The type llama3 divides the low ones (Llama 3.1). The type yarn
    does so too, and scales cosines and sines (Peng et al., 2023, arXiv:2309.00071).
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    rope_type: Literal["default", "linear", "llama3", "yarn"] = "default"
    rope_theta: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 10_000.0
    factor: Positive = 1.0
    original_max_position_embeddings: Size = 8192
    low_freq_factor: Positive = 1.0
    high_freq_factor: Positive = 4.0
    beta_fast: Positive = 32.0
    beta_slow: Positive = 1.0
    attention_factor: Positive | None = None
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True
    partial_rotary_factor: Annotated[float, Field(gt=0, le=1)] = 1.0

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, rope: object) -> object:
        if not isinstance(rope, dict):
            return rope
        rope = {key: value for key, value in rope.items() if value is not None}
        if any(isinstance(value, dict) for value in rope.values()):
            raise ValueError("rotary angles that differ from layer to layer are not supported")
        rope.setdefault("rope_type", rope.get("type", "default"))
        return rope

    @model_validator(mode="after")
    def _check(self) -> "Rope":
        if missing := [name for name in _ROPE_NEEDS[self.rope_type] if name not in self.model_fields_set]:
            raise ValueError(f"rope_type {self.rope_type} needs {', '.join(missing)}")
        if self.rope_type == "llama3" and self.low_freq_factor >= self.high_freq_factor:
            raise ValueError("low_freq_factor must be less than high_freq_factor")
        return self


class DecoderConfig(BaseModel):
    """Hold the part of a config.json that decides what is computed. Other keys are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    model_type: ModelType = "llama"
    hidden_act: Literal["silu"] = "silu"
    vocab_size: Size
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Layers
    num_attention_heads: Size
    num_key_value_heads: Size
    head_dim: HeadSize
    max_position_embeddings: Size = 2048
    rms_norm_eps: Positive = 1e-6
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: Size | None = None
    layer_types: tuple[Literal["full_attention", "sliding_attention"], ...] | None = None
    rope_parameters: Rope = Rope()

    @property
    def rotary_dim(self) -> int:
        """Return how many numbers of each head are rotated; the rest pass unchanged."""
        return int(self.head_dim * self.rope_parameters.partial_rotary_factor)

    @property
    def qkv_bias(self) -> bool:
        return self.attention_bias or self.model_type == "qwen2"

    @property
    def o_bias(self) -> bool:
        return self.attention_bias

    @property
    def qk_norm(self) -> bool:
        """Return whether each head's queries and keys are normalised before rotation (RMSNorm, shared by all heads)."""
        return self.model_type == "qwen3"

    def window_of(self, layer: int) -> int | None:
        """Return the most tokens, itself included, that a token of this layer attends to; None for all before it."""
        slides = self.layer_types is None or self.layer_types[layer] == "sliding_attention"
        return self.sliding_window if slides else None

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, config: object) -> object:
        """Fill in sizes that a file leaves out, and rotary parameters that older files name otherwise."""
        if not isinstance(config, dict):
            return config
        family = str(config.get("model_type", "llama"))
        config = set_keys({**_LEFT_OUT.get(family, {}), **config})
        for key, families in _READ_IN.items():
            if family not in families:
                config.pop(key, None)
        fill_in_heads(config)
        config["rope_parameters"] = rope_parameters(config)
        return _with_layer_types(config) if family in _READ_IN["layer_types"] else config

    @model_validator(mode="after")
    def _check(self) -> "DecoderConfig":
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError("num_attention_heads is not a multiple of num_key_value_heads")
        if self.rotary_dim % 2 or not self.rotary_dim:
            raise ValueError("head_dim is odd: rotary positions need an even number (of the part that is rotated)")
        if self.layer_types is not None and len(self.layer_types) != self.num_hidden_layers:
            raise ValueError(f"layer_types names {len(self.layer_types)} layers of {self.num_hidden_layers}")
        if self.sliding_window is None and "sliding_attention" in (self.layer_types or ()):
            raise ValueError("layer_types has sliding_attention, but there is no sliding_window")
        return self


def read_config(directory: Path | str) -> DecoderConfig:
    """Read the config.json of a Hugging Face directory.

    Raises:
        TargetError: It is missing, damaged, or of another family, or asks for what the decoder does not support.
    """
    raw = read_json(directory)
    check_model_type(directory, raw, MODEL_TYPES, "whet's decoder runs the families")
    return validated(directory, DecoderConfig, raw)


def fill_in_heads(config: dict[str, Any]) -> None:
    """Fill in, in place, how many key-value heads there are and how wide heads are, where a file leaves it out."""
    heads = config.get("num_attention_heads")
    config.setdefault("num_key_value_heads", heads)
    if isinstance(heads, int) and heads > 0 and isinstance(config.get("hidden_size"), int):
        config.setdefault("head_dim", config["hidden_size"] // heads)


def rope_parameters(config: Mapping[str, Any], *, partly: bool = False) -> object:
    """Return the rotary parameters as one dict, the form of newer files.

    Raises:
        ValueError: Heads are rotated in part, where the family does not support it (`partly`).
    """
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(rope, dict):
        return rope
    rope = {key: value for key, value in rope.items() if value is not None}
    for key in ("rope_theta", "partial_rotary_factor"):
        if key in config:
            rope.setdefault(key, config[key])
    if "original_max_position_embeddings" in config:  # it takes precedence over the one in the dict
        rope["original_max_position_embeddings"] = config["original_max_position_embeddings"]
    elif "max_position_embeddings" in config:
        rope.setdefault("original_max_position_embeddings", config["max_position_embeddings"])
    if rope.get("partial_rotary_factor", 1.0) != 1.0 and not partly:
        raise ValueError("partial_rotary_factor: only heads that are rotated as a whole are supported")
    return rope


def _with_layer_types(config: dict[str, Any]) -> dict[str, Any]:
    """Apply Qwen's rule: with use_sliding_window, the layers from max_window_layers on have a window."""
    config = dict(config)
    if not config.get("use_sliding_window"):
        config.pop("sliding_window", None)
    layers, full = config.get("num_hidden_layers"), config.get("max_window_layers")
    if "layer_types" not in config and "sliding_window" in config and isinstance(layers, int) and isinstance(full, int):
        types = ("full_attention", "sliding_attention")
        config["layer_types"] = tuple(types[layer >= full] for layer in range(min(layers, 10_000)))
    return config
