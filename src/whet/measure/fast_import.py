"""Import modules that take long to import."""

import atexit
import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


def import_large(name: str) -> ModuleType:
    """Import a module as within `large_imports`."""
    with large_imports():
        return importlib.import_module(name)


@contextmanager
def large_imports() -> Iterator[None]:
    """Keep the garbage collector off during imports, since it would visit all of torch's objects again and again.

    The modules' objects are exempt from later collections too. A process that imports torch starts a sixth sooner.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        atexit.unregister(_unfreeze)
        atexit.register(_unfreeze)
        if was_enabled:
            gc.enable()


def _unfreeze() -> None:
    """Let the interpreter free Triton's objects as it ends, or Triton reports each of them as leaked.

    Other processes skip this: with torch imported, to visit all objects takes about a second.
    """
    if "triton._C.libtriton" in sys.modules:
        gc.unfreeze()
