"""Figures as people read them: three significant digits with their unit. What is not known is a dash, never a zero."""

import math
from collections.abc import Sequence

DASH = "—"
_TIMES = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))
_SIZES = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))
_OPERATIONS = (("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6), ("kFLOP", 1e3), ("FLOP", 1.0))


def duration(seconds: float | None) -> str:
    """Three digits in s, ms or µs."""
    return _in_unit(seconds, _TIMES)


def num_bytes(count: float | None) -> str:
    """Three digits in GB, MB, kB (powers of 1000), or whole bytes."""
    if count is not None and 0.5 <= abs(count) < 999.5:
        return f"{count:.0f} B"
    return _in_unit(count, _SIZES)


def operations(count: float | None, *, short: bool = False) -> str:
    """Three digits in GFLOP and so on; short: without the FLOP."""
    text = _in_unit(count, _OPERATIONS)
    return text.replace("FLOP", "").rstrip() if short else text


def digits(value: float | None) -> str:
    """Three significant digits, never in powers of ten; a dash for what is not known."""
    if value is None or not math.isfinite(value):
        return DASH
    rounded = float(f"{value:.3g}")
    exponent = math.floor(math.log10(abs(rounded))) if rounded else 2
    return f"{rounded:,.{max(0, 2 - exponent)}f}"


def signed(count: int) -> str:
    """Growth, with its sign; under a page it is none."""
    if abs(count) < 1024:
        return "0"
    return ("+" if count > 0 else "−") + num_bytes(abs(count))


def percent(fraction: float | None) -> str:
    if fraction is None or not math.isfinite(fraction):
        return DASH
    return f"{fraction * 100:.{1 if fraction < 0.0995 else 0}f}%"


def _in_unit(value: float | None, units: Sequence[tuple[str, float]]) -> str:
    if value is None or not math.isfinite(value):
        return DASH
    unit, scale = next(((u, s) for u, s in units if abs(value) >= 0.9995 * s), units[-1])
    return f"{digits(value / scale)} {unit}" if value else "0"
