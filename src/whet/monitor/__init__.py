"""Watch a training run while it runs: figures, charts on a live page, Prometheus metrics, and a summary at the end."""

from whet.monitor.monitor import Monitor
from whet.monitor.summary import Summary

__all__ = ["Monitor", "Summary"]
