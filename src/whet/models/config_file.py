"""Read the config.json of a Hugging Face directory, before the kind of model is known."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, ValidationError
from pydantic_core import from_json

from whet.errors import TargetError

FILE = "config.json"

Config = TypeVar("Config", bound=BaseModel)

Size = Annotated[int, Field(gt=0, lt=2**31)]
HeadSize = Annotated[int, Field(gt=0, le=2**16)]  # angles of rotary positions are computed for each half of it
Layers = Annotated[int, Field(gt=0, le=10_000)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""The types of fields that many families have."""


def read_json(directory: Path | str, name: str = FILE) -> dict[str, Any]:
    """Return the unchanged content of a directory's config.json, or of another JSON file in it.

    Raises:
        TargetError: The file is missing, is not valid JSON, or does not hold an object.
    """
    path = Path(directory) / name
    try:
        raw = from_json(path.read_bytes())
    except OSError as error:
        raise TargetError(f"{directory} has no readable {name}: {error.strerror}") from error
    except ValueError as error:
        raise TargetError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(raw, dict):
        raise TargetError(f"{path} is not a model's config: it holds {type(raw).__name__}, not an object")
    return raw


def check_model_type(directory: Path | str, raw: Mapping[str, Any], known: Sequence[str], what: str) -> None:
    """Raise TargetError unless a config.json is of a known family; `what` is such as "the families of decoders are"."""
    if str(raw.get("model_type")) not in known:
        path = Path(directory) / FILE
        raise TargetError(f"{path}: model_type is {raw.get('model_type')!r}; {what} {', '.join(known)}")


def validated(directory: Path | str, kind: type[Config], raw: Mapping[str, Any], name: str = FILE) -> Config:
    """Return the content of a directory's config.json as a family's own type.

    Raises:
        TargetError: It does not fit the type.
    """
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "config"
        said = first["msg"].removeprefix("Value error, ")
        raise unusable(directory, f"{where}: {said}", name) from error
    except (TypeError, ArithmeticError) as error:  # from what is computed before fields are checked
        raise unusable(directory, str(error), name) from error


def set_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a config.json that are not null.

    Raises:
        ValueError: It is of quantised weights.
    """
    config = {key: value for key, value in config.items() if value is not None}
    if "quantization_config" in config:
        raise ValueError("quantization_config: whet reads only unquantised weights, and quantises them itself")
    return config


def unusable(directory: Path | str, why: str, name: str = FILE) -> TargetError:
    """Return the error for a config.json, or another file of a directory, that a family cannot use."""
    return TargetError(f"{Path(directory) / name} cannot be used: {why}")
