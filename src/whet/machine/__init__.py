"""What this computer is, and how fast it can be at the very best."""

from whet.machine.describe import Machine, describe
from whet.machine.limits import Limits, load_limits, measure_limits

__all__ = ["Limits", "Machine", "describe", "load_limits", "measure_limits"]
