"""The families of models that an engine can run, told apart by `model_type` in their config.json."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from whet.errors import OptionError, TargetError
from whet.models.config_file import FILE, read_json
from whet.models.decoder import config as decoder_config
from whet.models.decoder.serving import open_decoder
from whet.models.options import Dtype, KvBits, ServingOptions, WeightBits
from whet.models.step import ServedModel


@dataclass(frozen=True)
class Family:
    """A family of models.

    Attributes:
        models: Its models, for people.
        open: Loads a directory for an engine. Raises TargetError where it cannot be run, OptionError where an option
            does not fit the family.
    """

    models: str
    open: Callable[[Path | str, ServingOptions], ServedModel]


FAMILIES: dict[str, Family] = {name: Family(models, open_decoder) for name, models in decoder_config.FAMILIES.items()}
"""The family of each `model_type`. A new family joins by its line here."""


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
        dtype: The number format of state, and of weights that stay as they are.
        weights: How the weights are kept: as they are, or in 8 or 4 bits.
        kv: How keys and values are kept.
        max_model_len: The most tokens that a sequence may have; what the model takes, if not given.

    Raises:
        TargetError: The directory holds no model that can be run.
        OptionError: An option is none of its choices.
    """
    for name, value, choices in (
        ("dtype", dtype, ("bf16", "fp32")),
        ("weights", weights, ("as-is", "int8", "int4")),
        ("kv", kv, ("as-is", "int8")),
    ):
        if value not in choices:
            raise OptionError(f"{name}={value}: write {', '.join(choices)}")
    model_type = read_json(directory).get("model_type")
    family = FAMILIES.get(str(model_type))
    if family is None:
        known = ", ".join(f"{name} ({one.models})" for name, one in FAMILIES.items())
        path = Path(directory) / FILE
        raise TargetError(f"{path}: model_type is {model_type!r}; whet's decoder is of the families {known}")
    return family.open(directory, ServingOptions(dtype, weights, kv, max_model_len))
