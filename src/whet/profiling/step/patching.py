"""Set attributes of other libraries for a time, and restore them.

If other code has wrapped a wrapper meanwhile, that code keeps working. If it is another watch, it removes the wrapper
together with its own.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_ABSENT = object()
_GONE = "_whet_gone"

Call = Callable[..., Any]


class Patches:
    """Remember attributes that were set, and restore them."""

    def __init__(self) -> None:
        self._set: list[tuple[Any, str, Any, Any]] = []
        self._handles: list[Any] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of a class, a module or an instance."""
        self._set.append((owner, name, vars(owner).get(name, _ABSENT), value))
        setattr(owner, name, value)

    def add_handle(self, handle: Any) -> None:
        self._handles.append(handle)

    def restore(self) -> None:
        """Restore all attributes, the latest first, and remove all hooks."""
        while self._handles:
            self._handles.pop().remove()
        while self._set:
            owner, name, before, value = self._set.pop()
            if vars(owner).get(name) is not value:
                value.__dict__[_GONE] = (value, before)  # a watch that restores `value` later restores `before` instead
                continue
            while (gone := getattr(before, _GONE, None)) is not None and gone[0] is before:
                before = gone[1]
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


@contextmanager
def patched(install: Callable[[Patches], None]) -> Iterator[Patches]:
    """Patch with `install` until the context ends. What it patched is restored even if `install` raises half-way."""
    patches = Patches()
    try:
        install(patches)
        yield patches
    finally:
        patches.restore()
