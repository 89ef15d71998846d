"""Watch a training run while it runs: figures, charts on a live page, Prometheus metrics, and a summary at the end."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whet.scripts.monitor.monitor import Monitor
    from whet.scripts.monitor.summary import Summary

__all__ = ["Monitor", "Summary"]


def __getattr__(name: str) -> Any:
    """Import a class when it is first used: the command line reads settings.py alone before it has work to do."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{name.lower()}"), name)
