"""Read the tables of a configuration. Nothing is imported that takes long, so that a wrong name is said at once."""

import tomllib
from pathlib import Path
from typing import Any

from whet.errors import TargetError


def read_toml(path: Path) -> dict[str, Any]:
    """Return a TOML file's tables.

    Raises:
        TargetError: The file cannot be read, or is no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TargetError(f"there is no configuration {path}; name a TOML file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise TargetError(f"{path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise TargetError(f"{path} is no TOML: {error}") from error
