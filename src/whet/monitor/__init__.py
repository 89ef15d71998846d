"""Watch a training run as it goes: figures, charts on a live page, Prometheus metrics, a summary at the end."""

from whet.monitor.monitor import Monitor
from whet.monitor.summary import Summary

__all__ = ["Monitor", "Summary"]
