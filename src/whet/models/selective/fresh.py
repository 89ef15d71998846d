"""Make a selective state-space model with new weights, and say how such models are trained."""

from typing import Any

from whet.models.selective.config import SelectiveConfig, written_number
from whet.models.selective.reference import Selective, initialise
from whet.models.trainable import Trainable

# The fields that only one of the two kinds of mixers has.
_OF_MAMBA_1 = {"time_step_rank"}
_OF_MAMBA_2 = {"num_heads", "head_dim", "n_groups", "time_step_limit"}


def file_name(name: str) -> str:
    """Return the name that transformers gives a weight of a model, as it stands in files."""
    return name if name.startswith("lm_head.") else f"backbone.{name}"


def config_json(config: SelectiveConfig) -> dict[str, Any]:
    """Return the keys of a config.json, as transformers writes them.

    transformers takes the inner width from `expand`, which must give it exactly.
    """
    left_out = {"intermediate_size"} | (_OF_MAMBA_1 if config.has_heads else _OF_MAMBA_2)
    if not config.norms_projections:
        left_out.add("mixer_rms_eps")
    keys = config.model_dump(mode="json", exclude=left_out)
    keys["expand"] = _expand(config)
    if config.has_heads:
        keys["time_step_limit"] = [written_number(limit) for limit in config.time_step_limit]
    return keys


def _expand(config: SelectiveConfig) -> int | float:
    """Return the inner width over the width, as a whole number where it is one."""
    whole, rest = divmod(config.intermediate_size, config.hidden_size)
    return config.intermediate_size / config.hidden_size if rest else whole


def refusal(config: SelectiveConfig) -> str:
    """Return why transformers would not read a config, or "" where it does."""
    if config.intermediate_size % config.hidden_size:
        return (
            f"intermediate_size: {config.intermediate_size} is no multiple of hidden_size {config.hidden_size}, and "
            "transformers takes whole numbers of expand alone"
        )
    return ""


TRAINABLE = Trainable(
    config=SelectiveConfig,
    also_known=frozenset({"expand"}),
    build=Selective,
    initialise=initialise,
    file_name=file_name,
    config_json=config_json,
    architectures={
        "mamba": "MambaForCausalLM",
        "mamba2": "Mamba2ForCausalLM",
        "falcon_mamba": "FalconMambaForCausalLM",
    },
    packing="documents",
    not_adapted={
        "dt_proj": "the scan adds its bias, so that the layer is never called",
        "out_proj": "peft refuses it in models of the Mamba family",
    },
    dropped=("Mamba1Mixer", "Mamba2Mixer"),
    refusal=refusal,
)
"""Say how selective state-space models are trained."""

fresh_selective = TRAINABLE.fresh
