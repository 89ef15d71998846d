"""Render pages from templates of Jinja: values are escaped, and one that is missing is an error."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def templates(folder: Path, filters: Mapping[str, Callable[..., Any]] | None = None) -> Environment:
    """Return what renders the templates of a folder, which format values with `filters`, by name."""
    found = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= dict(filters or {})
    return found
