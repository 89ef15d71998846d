"""Read the tables of a TOML file that a person wrote, and say what is wrong with them by key.

Nothing is imported that takes long, so that a wrong name is said at once.
"""

import difflib
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from whet.errors import TargetError

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

_MOST = 5  # problems that one message names


def read_toml(path: Path, what: str = "configuration") -> dict[str, Any]:
    """Return a TOML file's tables.

    Args:
        what: What the file should be, for messages.

    Raises:
        TargetError: The file cannot be read, or is no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TargetError(f"there is no {what} {path}; name a TOML file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise TargetError(f"{path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise TargetError(f"{path} is no TOML: {error}") from error


def problems(error: "ValidationError", kind: "type[BaseModel]") -> str:
    """Return what is wrong with tables that do not fit a type, each with its key, as one line."""
    return "; ".join(_said(one, kind) for one in error.errors()[:_MOST])


def _said(error: Any, kind: Any) -> str:
    """Return what is wrong with one value, in a sentence, with the key that was probably meant."""
    names = [str(name) for name in error["loc"]]
    key = ".".join(names)
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(names[-1], _keys_of(kind, names[:-1]), n=1, cutoff=0.5)
        return f"there is no key {key}{f'; did you mean {near[0]}?' if near else ''}"
    if error["type"] == "missing":
        return f"the key {key} is missing"
    said = str(error["msg"]).removeprefix("Value error, ")
    return f"{key}: {said}" if key else said


def _keys_of(kind: Any, names: Sequence[str]) -> list[str]:
    for name in names:
        field = kind.model_fields.get(name)
        kinds = [] if field is None else [field.annotation, *get_args(field.annotation)]
        kind = next((one for one in kinds if hasattr(one, "model_fields")), None)
        if kind is None:
            return []
    return list(kind.model_fields)
