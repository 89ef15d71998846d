"""Keep public names that have moved working at the old place for one version, with a warning that names the new one."""

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def moved(module: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module's `__getattr__` that finds names in their new modules, with a DeprecationWarning.

    Args:
        module: The old module's name.
        places: The new module of each name.
    """

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        place = places[name]
        message = f"{module}.{name} has moved to {place}.{name}; the old name goes with the next version"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return getattr(import_module(place), name)

    return find
