"""Read a config.json of the Mamba family: that of transformers, or that of the original code (state-spaces/mamba).

The fields and their defaults are those of transformers. Settings that would change the computation in a way that the
model does not support are refused.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from whet.models.config_file import Layers, Positive, Size, check_model_type, read_json, set_keys, unusable, validated

ModelType = Literal["mamba", "mamba2", "falcon_mamba"]
MODEL_TYPES: tuple[str, ...] = get_args(ModelType)

# Each family's defaults for fields that config.json leaves out, where they differ from those of SelectiveConfig.
_LEFT_OUT: Mapping[str, Mapping[str, object]] = {
    "mamba": {},
    "falcon_mamba": {},
    "mamba2": {
        "vocab_size": 32768,
        "hidden_size": 4096,
        "state_size": 128,
        "num_hidden_layers": 64,
        "tie_word_embeddings": False,
    },
}


class SelectiveConfig(BaseModel):
    """Hold the part of a config.json that decides what is computed. Other keys are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    model_type: ModelType = "mamba"
    hidden_act: Literal["silu"] = "silu"
    vocab_size: Size = 50280
    hidden_size: Size = 768
    state_size: Size = 16
    num_hidden_layers: Layers = 32
    intermediate_size: Size = 1536
    conv_kernel: Annotated[int, Field(gt=0, le=64)] = 4
    layer_norm_epsilon: Positive = 1e-5
    use_bias: bool = False
    use_conv_bias: bool = True
    tie_word_embeddings: bool = True
    # of Mamba-1
    time_step_rank: Size = 48
    mixer_rms_eps: Positive = 1e-6
    # of Mamba-2
    num_heads: Size = 128
    head_dim: Size = 64
    n_groups: Size = 8
    time_step_limit: tuple[float, float] = (0.0, math.inf)
    # of new weights
    time_step_min: Positive = 0.001
    time_step_max: Positive = 0.1
    time_step_floor: Positive = 1e-4

    @property
    def has_heads(self) -> bool:
        """Return whether a head shares one step size and one rate (Mamba-2)."""
        return self.model_type == "mamba2"

    @property
    def norms_projections(self) -> bool:
        """Return whether step sizes, B and C are normalised, without weights (Falcon-Mamba)."""
        return self.model_type == "falcon_mamba"

    @property
    def conv_size(self) -> int:
        """Return the number of channels that are convolved."""
        return self.intermediate_size + (2 * self.n_groups * self.state_size if self.has_heads else 0)

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, config: object) -> object:
        if not isinstance(config, dict):
            return config
        family = str(config.get("model_type", "mamba"))
        config = {**_LEFT_OUT.get(family, {}), **set_keys(config)}
        hidden, expand = config.get("hidden_size", 768), config.pop("expand", 2)
        if isinstance(hidden, int) and isinstance(expand, int | float):
            config.setdefault("intermediate_size", int(expand * hidden))
            if config.get("time_step_rank", "auto") == "auto":
                config["time_step_rank"] = math.ceil(hidden / 16)
        if isinstance(limits := config.get("time_step_limit"), list):
            config["time_step_limit"] = tuple(number_of(limit) for limit in limits)
        return config

    @model_validator(mode="after")
    def _check(self) -> "SelectiveConfig":
        if not self.has_heads:
            return self
        if self.num_heads * self.head_dim != self.intermediate_size:
            raise ValueError(
                f"num_heads {self.num_heads} times head_dim {self.head_dim} is not intermediate_size, expand times "
                f"hidden_size: {self.intermediate_size}"
            )
        if self.num_heads % self.n_groups or self.intermediate_size % self.n_groups:
            raise ValueError("num_heads is not a multiple of n_groups")
        if not 0 <= self.time_step_limit[0] <= self.time_step_limit[1]:
            raise ValueError("time_step_limit is not two numbers in order")
        return self


def read_config(directory: Path | str) -> SelectiveConfig:
    """Read the config.json of a directory, of transformers or of the original code.

    Raises:
        TargetError: It is missing, damaged, or of another family, or asks for what the model does not support.
    """
    raw = read_json(directory)
    if is_original(raw):
        raw = _from_original(directory, raw)
    check_model_type(directory, raw, MODEL_TYPES, "the selective state-space families are")
    return validated(directory, SelectiveConfig, raw)


def is_original(raw: Mapping[str, Any]) -> bool:
    """Return whether a config.json is of the original code."""
    return "model_type" not in raw and "d_model" in raw and "n_layer" in raw


def _from_original(directory: Path | str, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return an original config with transformers' names. Source: mamba_ssm/models/config_mamba.py, modules/."""
    given = raw.get("ssm_cfg") or {}
    if not isinstance(given, dict):
        raise unusable(directory, "ssm_cfg is no object")
    numbers = {"d_model": raw["d_model"], "vocab_size": raw.get("vocab_size", 50277)}
    numbers |= {"pad_vocab_size_multiple": raw.get("pad_vocab_size_multiple", 8), "headdim": given.get("headdim", 64)}
    for key, value in numbers.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise unusable(directory, f"{key} is {value!r}, not a number above 0")
    if not isinstance(given.get("expand", 2), int | float):
        raise unusable(directory, "expand is no number")
    is_second = given.get("layer", "Mamba1") == "Mamba2"
    for key, wanted in (("rms_norm", True), ("attn_layer_idx", []), ("d_intermediate", 0)):
        if raw.get(key, wanted) != wanted:
            raise unusable(directory, f"{key} is {raw[key]!r}, and whet takes {wanted!r}")
    renamed = {
        "d_state": "state_size",
        "d_conv": "conv_kernel",
        "expand": "expand",
        "dt_rank": "time_step_rank",
        "headdim": "head_dim",
        "ngroups": "n_groups",
        "bias": "use_bias",
        "conv_bias": "use_conv_bias",
        "dt_min": "time_step_min",
        "dt_max": "time_step_max",
        "dt_init_floor": "time_step_floor",
        "dt_limit": "time_step_limit",
    }
    known = {
        *renamed,
        "layer",
        "chunk_size",
        "dt_scale",
        "dt_init",
        "A_init_range",
        "use_fast_path",
        "use_mem_eff_path",
    }
    if unknown := sorted(given.keys() - known):
        raise unusable(directory, f"ssm_cfg has {unknown[0]}, which whet does not know")
    every = numbers["pad_vocab_size_multiple"]
    config = {
        "model_type": "mamba2" if is_second else "mamba",
        "vocab_size": -(-numbers["vocab_size"] // every) * every,
        "hidden_size": raw["d_model"],
        "num_hidden_layers": raw["n_layer"],
        "tie_word_embeddings": raw.get("tie_embeddings", True),
        "state_size": 128 if is_second else 16,
        **{renamed[key]: value for key, value in given.items() if key in renamed},
    }
    if is_second:
        config.setdefault("n_groups", 1)
        config["num_heads"] = int(config.get("expand", 2) * raw["d_model"]) // config.get("head_dim", 64)
    return config


def number_of(limit: object) -> object:
    """Return a number that may be written as transformers writes infinity: {"__float__": "Infinity"}."""
    return limit.get("__float__") if isinstance(limit, dict) else limit


def written_number(number: float) -> object:
    """Return a number as transformers writes it: JSON has no infinity."""
    return number if number < math.inf else {"__float__": "Infinity"}
