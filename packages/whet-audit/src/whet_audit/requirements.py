"""The oldest torch that a project supports, as its own requirement files state it."""

from __future__ import annotations

import ast
import re
import tomllib
import warnings
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

_FILES = ("pyproject.toml", "setup.cfg", "setup.py", "requirements*.txt", "requirements/*.txt", "environment*.y*ml")
_MOST_FOLDERS = 8  # from a file up to the root of its project
_TORCH = re.compile(
    r"\s*(?:-\s*)?(?:pytorch::)?(?:py)?torch\s*(?:\[[\w,\s-]*\])?\s*(?P<bounds>\(?[\^~<>=!].*|;.*|,.*|)$"
)
_LOWER = re.compile(r"(?:>=|===?|~=|\^|~|>|(?<![<>=!~^])=)\s*v?(\d+)(?:\.(\d+))?")

Version = tuple[int, int]


def oldest_torch(path: str) -> Version | None:
    """Find the lowest version of torch that the project of a file asks for.

    The project is the nearest directory above the file whose requirement files name torch. The search ends at the root
    of a version control checkout.

    Args:
        path: a Python file.

    Returns:
        Major and minor version. None where no requirement names torch, or where one names it without a lower bound.
    """
    return _of_folder(Path(path).absolute().parent)


def supports(path: str, version: Version) -> bool | None:
    """Whether the project of a file runs on no torch older than a version; None where it does not say."""
    oldest = oldest_torch(path)
    return None if oldest is None else oldest >= version


@lru_cache(maxsize=4096)
def _of_folder(folder: Path) -> Version | None:
    for place in [folder, *folder.parents][:_MOST_FOLDERS]:
        stated = [_lower(bounds) for file in _files(place) for bounds in _bounds(file)]
        if stated:
            known = [bound for bound in stated if bound is not None]
            return min(known) if len(known) == len(stated) else None
        if (place / ".git").exists():
            return None
    return None


def _files(folder: Path) -> list[Path]:
    return sorted(file for pattern in _FILES for file in folder.glob(pattern) if file.is_file())


def _bounds(file: Path) -> Iterator[str]:
    """What a file demands of torch, one text a requirement: ">=2.1,<3", "" where it demands nothing."""
    try:
        text = file.read_text(encoding="utf-8")
        requirements = list(_requirements(file, text))
    except (OSError, ValueError, SyntaxError, RecursionError):  # TOMLDecodeError and UnicodeError are ValueErrors
        return
    for requirement in requirements:
        found = _TORCH.match(requirement)
        if found:
            yield found["bounds"].partition(";")[0]


def _requirements(file: Path, text: str) -> Iterator[str]:
    if file.suffix == ".toml":
        content = tomllib.loads(text)
        content.pop("build-system", None)
        yield from _of_table(content, is_dependency=False)
    elif file.suffix == ".py":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of invalid escapes in the file that is read
            tree = ast.parse(text)
        yield from (n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str))
    else:
        yield from (line.partition("#")[0].rstrip() for line in text.splitlines())


def _of_table(value: object, *, is_dependency: bool) -> Iterator[str]:
    """Texts in the lists of a TOML file's tables whose names speak of dependencies; `name = "bound"` as one text."""
    if isinstance(value, dict):
        for key, inner in value.items():
            below = is_dependency or "dependenc" in str(key)
            bound = inner.get("version") if isinstance(inner, dict) else inner
            if below and key == "torch" and isinstance(bound, str):
                yield f"torch{bound if bound[:1] in '^~<>=!' else '' if bound == '*' else f'=={bound}'}"
            else:
                yield from _of_table(inner, is_dependency=below)
    elif isinstance(value, list) and is_dependency:
        yield from (one for one in value if isinstance(one, str))


def _lower(bounds: str) -> Version | None:
    found = _LOWER.search(bounds)
    return (int(found[1]), int(found[2] or 0)) if found else None
