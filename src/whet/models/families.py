"""List the families of models that whet reads, trains and serves: `model_type` in config.json decides."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from whet.errors import OptionError, TargetError
from whet.models.config_file import FILE, read_json
from whet.models.decoder import config as decoder_config
from whet.models.decoder import files as decoder_files
from whet.models.decoder import fresh as decoder_fresh
from whet.models.decoder.reference import load_decoder
from whet.models.decoder.serving import open_decoder
from whet.models.hybrid import config_files as hybrid_config
from whet.models.hybrid import files as hybrid_files
from whet.models.hybrid import fresh as hybrid_fresh
from whet.models.hybrid.serving import open_hybrid
from whet.models.memory_bank import config as ltm_config
from whet.models.memory_bank import files as ltm_files
from whet.models.memory_bank import fresh as ltm_fresh
from whet.models.memory_bank.reference import load_ltm
from whet.models.memory_bank.serving import open_ltm
from whet.models.options import Dtype, KvBits, ServingOptions, WeightBits
from whet.models.selective import config as selective_config
from whet.models.selective import files as selective_files
from whet.models.selective import fresh as selective_fresh
from whet.models.selective.reference import load_selective
from whet.models.selective.serving import open_selective
from whet.models.step import ServedModel
from whet.models.trainable import Trainable


@dataclass(frozen=True, kw_only=True)
class Family:
    """Describe how the directories of a family of models are read, and what runs them.

    Attributes:
        models: The names of its models, for messages.
        load: Loads a directory as a readable module of PyTorch, whose matrices have a given type.
        open: Loads a directory for an engine, with whet's kernels where they can run it. It raises TargetError if the
            model cannot be run, and OptionError if an option does not fit the family.
        trains: How such models are made, called and written by whet train; None where it leaves them to transformers.
    """

    models: str
    read_config: Callable[[Path | str], Any]
    read_weights: Callable[[Path | str, Any], dict[str, Tensor]]
    load: Callable[[Path | str, torch.dtype], nn.Module]
    open: Callable[[Path | str, ServingOptions], ServedModel]
    trains: Trainable | None = None


_decoder = partial(
    Family,
    read_config=decoder_config.read_config,
    read_weights=decoder_files.read_weights,
    load=load_decoder,
    open=open_decoder,
    trains=decoder_fresh.TRAINABLE,
)
_selective = partial(
    Family,
    read_config=selective_config.read_config,
    read_weights=selective_files.read_weights,
    load=load_selective,
    open=open_selective,
    trains=selective_fresh.TRAINABLE,
)
_hybrid = partial(
    Family,
    read_config=hybrid_config.read_config,
    read_weights=hybrid_files.read_weights,
    load=hybrid_files.load_hybrid,
    open=open_hybrid,
)

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": _decoder(models="Llama 2 and 3, SmolLM"),
        "mistral": _decoder(models="Mistral"),
        "qwen2": _decoder(models="Qwen2, Qwen2.5"),
        "qwen3": _decoder(models="Qwen3"),
        "mamba": _selective(models="Mamba"),
        "mamba2": _selective(models="Mamba-2, Codestral Mamba"),
        "falcon_mamba": _selective(models="Falcon-Mamba"),
        "lfm2": _hybrid(models="LFM2", trains=hybrid_fresh.TRAINABLE["lfm2"]),
        "granitemoehybrid": _hybrid(models="Granite 4, dense", trains=hybrid_fresh.TRAINABLE["granitemoehybrid"]),
        "bamba": _hybrid(models="Bamba", trains=hybrid_fresh.TRAINABLE["bamba"]),
        "falcon_h1": _hybrid(models="Falcon-H1", trains=hybrid_fresh.TRAINABLE["falcon_h1"]),
        "nemotron_h": _hybrid(models="Nemotron-H, dense", trains=hybrid_fresh.TRAINABLE["nemotron_h"]),
        "ltm": Family(
            models="long-term memory",
            read_config=ltm_config.read_config,
            read_weights=ltm_files.read_weights,
            load=load_ltm,
            open=open_ltm,
            trains=ltm_fresh.TRAINABLE,
        ),
    }
)
"""The family of each `model_type`. Add a line here for a new family."""


def model_type_of(raw: Mapping[str, Any]) -> str:
    """Return the key of FAMILIES that the content of a config.json asks for; it may be unknown.

    A config.json in the layout of the original code of Mamba names no model_type.
    """
    return "mamba" if selective_config.is_original(raw) else str(raw.get("model_type"))


def open_model(
    directory: Path | str,
    *,
    dtype: Dtype = "bf16",
    weights: WeightBits = "as-is",
    kv: KvBits = "as-is",
    max_model_len: int | None = None,
) -> ServedModel:
    """Load a model for an engine from a Hugging Face directory.

    Args:
        dtype: The number format of state, and of weights that are not quantised.
        weights: The format of the weights: unchanged, or in 8 or 4 bits.
        max_model_len: The most tokens of a sequence. By default, the model's own limit.

    Raises:
        TargetError: The directory holds no model that can be run.
        OptionError: The value of an option is unknown.
    """
    for name, value, choices in (
        ("dtype", dtype, ("bf16", "fp32")),
        ("weights", weights, ("as-is", "int8", "int4")),
        ("kv", kv, ("as-is", "int8")),
    ):
        if value not in choices:
            raise OptionError(f"{name}={value}: write {', '.join(choices)}")
    raw = read_json(directory)
    family = FAMILIES.get(model_type_of(raw))
    if family is None:
        known = ", ".join(f"{name} ({one.models})" for name, one in FAMILIES.items())
        path = Path(directory) / FILE
        raise TargetError(f"{path}: model_type is {raw.get('model_type')!r}; whet runs the families {known}")
    return family.open(directory, ServingOptions(dtype, weights, kv, max_model_len))
