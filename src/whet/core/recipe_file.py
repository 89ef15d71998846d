"""Read the text of a recipe.toml, which is quick: commands do it before they import what a recipe is."""

import tomllib
from pathlib import Path
from typing import Any

from whet.errors import RecipeError

FILE = "recipe.toml"


def parsed(path: Path) -> dict[str, Any]:
    """Return the content of a recipe, or of that in a tuning run's directory, whose fields nobody has checked yet.

    Raises:
        RecipeError: It is missing, is no TOML, is empty or has another format.
    """
    path = file_of(path)
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RecipeError(f"{path} does not exist; `whet tune` writes one") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RecipeError(
            f"{path} cannot be read as a recipe: {error}; give a recipe.toml that `whet tune` wrote"
        ) from error
    if not data:
        raise RecipeError(f"{path} is empty; give a recipe.toml that `whet tune` wrote")
    if data.get("format", 1) != 1:
        raise RecipeError(f"{path} has format {data['format']}; this whet reads format 1: install a newer whet")
    return data


def file_of(path: Path) -> Path:
    """Return the file itself, given a directory that holds it."""
    return path / FILE if path.is_dir() else path
