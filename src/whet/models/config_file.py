"""The config.json of a Hugging Face directory, before it is known what kind of model it describes."""

from pathlib import Path
from typing import Any

from pydantic_core import from_json

from whet.errors import TargetError

FILE = "config.json"


def read_json(directory: Path | str) -> dict[str, Any]:
    """Return the config of a directory as it is written.

    Raises:
        TargetError: The file is missing, is no JSON, or holds something else than an object.
    """
    path = Path(directory) / FILE
    try:
        raw = from_json(path.read_bytes())
    except OSError as error:
        raise TargetError(f"{directory} has no readable config.json: {error.strerror}") from error
    except ValueError as error:
        raise TargetError(f"{path} is no JSON: {error}") from error
    if not isinstance(raw, dict):
        raise TargetError(f"{path} is no config: it holds {type(raw).__name__}, not an object")
    return raw
