"""Patterns of paths, as in .gitignore: without a slash any part of the path, with one from the top."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec


def matches(path: str, pattern: str) -> bool:
    """Whether a relative path with slashes, or a directory above it, fits the pattern.

    A pattern that ends in a slash fits the path itself as well, as a path does not say whether it is a directory.
    Raises ValueError for what is no pattern.
    """
    spec = _spec(pattern.removeprefix("./"))
    return spec.match_file(path) or (pattern.endswith("/") and spec.match_file(f"{path}/"))


@cache
def _spec(pattern: str) -> GitIgnoreSpec:
    """Imported only here: most audits have no patterns."""
    spec: GitIgnoreSpec = import_module("pathspec").GitIgnoreSpec.from_lines([pattern])
    return spec
