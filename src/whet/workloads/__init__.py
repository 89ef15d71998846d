"""Name the built-in workloads, and turn a name on the command line into a Workload.

Importing this loads neither torch nor any data; `resolve` loads them when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from whet.workloads.builtin import BUILTIN, BUILTIN_STREAMS, BUILTIN_TRAINING, WEIGHTS

if TYPE_CHECKING:
    from whet.workloads.target import resolve

__all__ = ["BUILTIN", "BUILTIN_STREAMS", "BUILTIN_TRAINING", "WEIGHTS", "resolve"]


def __getattr__(name: str) -> Any:
    if name == "resolve":
        return import_module("whet.workloads.target").resolve
    raise AttributeError(f"module 'whet.workloads' has no attribute {name!r}")
