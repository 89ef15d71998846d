"""What the reference renders has docstrings: a name without one would be missing from its page without a word."""

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

API = Path(__file__).parents[2] / "docs" / "api"
RENDERED = sorted({name for page in API.glob("*.md") for name in re.findall(r"^::: (\S+)", page.read_text(), re.M)})


def found(path: str) -> Any:
    """Return the object at a dotted path, whose last parts may be attributes."""
    module, _, name = path.rpartition(".")
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        return getattr(found(module), name)


def without_docstring(name: str, what: Any) -> Iterator[str]:
    """Yield the names of what is rendered under a name and has no docstring of its own."""
    made = f"{getattr(what, '__name__', '')}("  # as dataclass begins the one that it makes
    if not what.__doc__ or what.__doc__.startswith(made):
        yield name
    if not isinstance(what, ModuleType | type):
        return
    home = what.__name__ if isinstance(what, ModuleType) else what.__module__
    for member, value in vars(what).items():
        inner = getattr(value, "__func__", getattr(value, "fget", getattr(value, "func", value)))
        if member.startswith("_") or not (inspect.isfunction(inner) or inspect.isclass(inner)):
            continue
        if inner.__module__ == home and inner.__qualname__ == f"{getattr(what, '__qualname__', '')}.{member}".strip(
            "."
        ):
            yield from without_docstring(f"{name}.{member}", inner)


@pytest.mark.parametrize("name", RENDERED)
def test_what_is_rendered_has_docstrings(name: str) -> None:
    assert list(without_docstring(name, found(name))) == []


def test_a_missing_docstring_is_found() -> None:
    class Bare:
        def method(self) -> None: ...

        @property
        def size(self) -> int:
            return 0

    name = Bare.__qualname__
    assert list(without_docstring(name, Bare)) == [name, f"{name}.method", f"{name}.size"]
