"""List the families of models that an engine can run. `model_type` in config.json decides which one it is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.errors import OptionError, TargetError
from whet.models.config_file import FILE, read_json
from whet.models.decoder import config as decoder_config
from whet.models.decoder import fresh as decoder_fresh
from whet.models.decoder.serving import open_decoder
from whet.models.options import Dtype, KvBits, ServingOptions, WeightBits
from whet.models.selective import config as selective_config
from whet.models.selective import fresh as selective_fresh
from whet.models.selective.serving import open_selective
from whet.models.step import ServedModel
from whet.models.trainable import Trainable


@dataclass(frozen=True)
class Family:
    """Describe a family of models.

    Attributes:
        models: The names of its models, for messages.
        open: Loads a directory for an engine. It raises TargetError if the model cannot be run, and OptionError if an
            option does not fit the family.
        trains: How such models are trained; None where whet train leaves them to transformers.
    """

    models: str
    open: Callable[[Path | str, ServingOptions], ServedModel]
    trains: Trainable | None = None


FAMILIES: dict[str, Family] = {
    **{name: Family(models, open_decoder, decoder_fresh.TRAINABLE) for name, models in decoder_config.FAMILIES.items()},
    **{
        name: Family(models, open_selective, selective_fresh.TRAINABLE)
        for name, models in selective_config.FAMILIES.items()
    },
}
"""The family of each `model_type`. Add a line here for a new family."""


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
        directory: The directory.
        dtype: The number format of state, and of weights that are not quantised.
        weights: The format of the weights: unchanged, or in 8 or 4 bits.
        kv: The format of keys and values.
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
    model_type = model_type_of(raw)
    family = FAMILIES.get(model_type)
    if family is None:
        known = ", ".join(f"{name} ({one.models})" for name, one in FAMILIES.items())
        path = Path(directory) / FILE
        raise TargetError(f"{path}: model_type is {raw.get('model_type')!r}; whet runs the families {known}")
    return family.open(directory, ServingOptions(dtype, weights, kv, max_model_len))


def model_type_of(raw: Mapping[str, Any]) -> str:
    """Return the key of FAMILIES that the content of a config.json asks for; it may be unknown.

    A config.json in the layout of the original code of Mamba names no model_type.
    """
    return "mamba" if selective_config.is_original(raw) else str(raw.get("model_type"))
