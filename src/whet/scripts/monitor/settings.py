"""Hold the limits and defaults of whet.Monitor and whet monitor, and check them before anything heavy is imported."""

from whet.errors import OptionError

DEFAULT_PORT = 8765
MIN_INTERVAL_S = 0.05


def check_interval(interval_s: float) -> None:
    """Raise OptionError where samples would lie too close together."""
    if not interval_s >= MIN_INTERVAL_S:
        raise OptionError(f"--interval {interval_s:g}s: samples must be at least {MIN_INTERVAL_S} s apart")
