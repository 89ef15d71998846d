"""What the reference renders has docstrings: a name without one would be missing from its page without a word."""

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel

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
    if isinstance(what, type) and issubclass(what, BaseModel):  # whose signature the page does not show
        fields = (field for field in what.model_fields if field != "format")
        yield from (f"{name}.{field}" for field in fields if not re.search(rf"^ +{field}:", what.__doc__ or "", re.M))
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
    class Fields(BaseModel):
        """Hold a size.

        Attributes:
            size: In bytes.
        """

        size: int
        other: int

    assert list(without_docstring("Fields", Fields)) == ["Fields.other"]

    class Bare:
        def method(self) -> None: ...

        @property
        def size(self) -> int:
            return 0

    name = Bare.__qualname__
    assert list(without_docstring(name, Bare)) == [name, f"{name}.method", f"{name}.size"]
