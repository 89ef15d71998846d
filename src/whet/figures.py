"""Figures as people read them: three significant digits with their unit. What is not known is a dash, never a zero."""

import math
from collections.abc import Sequence

DASH = "—"

MIN_SAMPLES_FOR_P99 = 500  # below that the 99th percentile is one of a handful of samples

Units = Sequence[tuple[str, float]]
"""Name and size of each unit, largest first."""

_TIMES: Units = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))
_SIZES: Units = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))
_OPERATIONS: Units = (("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6), ("kFLOP", 1e3), ("FLOP", 1.0))


def digits(value: float | None) -> str:
    """Three significant digits, never in powers of ten: 0.0123, 1.23, 12.3, 1,230."""
    if value is None or math.isnan(value):
        return DASH
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    rounded = float(f"{value:.3g}")
    exponent = math.floor(math.log10(abs(rounded))) if rounded else 2
    return f"{rounded:,.{max(0, 2 - exponent)}f}".replace("-", "−")


def in_unit(value: float | None, units: Units, like: float | None = None) -> str:
    """In the largest unit that the value reaches; in the one that fits `like`, so that a column keeps one unit."""
    if value is None or not math.isfinite(value):
        return DASH
    reference = abs(like or value)
    unit, scale = next(((u, s) for u, s in units if reference >= 0.9995 * s), units[-1])
    return f"{digits(value / scale)} {unit}"


def duration(seconds: float | None, like: float | None = None) -> str:
    """A time in s, ms or µs."""
    return in_unit(seconds, _TIMES, like)


def num_bytes(count: float | None, like: float | None = None) -> str:
    """A size in GB, MB, kB (powers of 1000), or whole bytes."""
    if like is None and count is not None and abs(count) < 999.5:
        return f"{count:.0f} B".replace("-", "−")
    return in_unit(count, _SIZES, like)


def operations(count: float | None, *, short: bool = False) -> str:
    """Floating-point operations in GFLOP and so on; short: without the FLOP."""
    text = in_unit(count, _OPERATIONS)
    return text.replace("FLOP", "").rstrip() if short else text
