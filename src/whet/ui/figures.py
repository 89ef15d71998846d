"""Format figures for people: three significant digits with their unit. Unknown values are a dash, never a zero."""

import math
from collections.abc import Sequence

DASH = "—"

MIN_SAMPLES_FOR_P99 = 500  # with fewer samples, the 99th percentile rests on fewer than five of them

Units = Sequence[tuple[str, float]]
"""List the name and size of each unit, largest first."""

_TIMES: Units = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))
_SIZES: Units = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))
_OPERATIONS: Units = (("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6), ("kFLOP", 1e3), ("FLOP", 1.0))


def digits(value: float | None) -> str:
    """Format a number with three significant digits and no power of ten: 0.0123, 1.23, 12.3, 1,230."""
    if value is None or math.isnan(value):
        return DASH
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    rounded = float(f"{value:.3g}")
    exponent = math.floor(math.log10(abs(rounded))) if rounded else 2
    return f"{rounded:,.{max(0, 2 - exponent)}f}".replace("-", "−")


def in_unit(value: float | None, units: Units, like: float | None = None) -> str:
    """Format a value in the largest unit that it reaches.

    None and NaN give a dash. `like` is the value that chooses the unit instead, so that a column keeps one unit.
    """
    if value is None or not math.isfinite(value):
        return DASH
    reference = abs(like or value)
    unit, scale = next(((u, s) for u, s in units if reference >= 0.9995 * s), units[-1])
    return f"{digits(value / scale)} {unit}"


def duration(seconds: float | None, like: float | None = None) -> str:
    """Format seconds as s, ms or µs."""
    return in_unit(seconds, _TIMES, like)


def milliseconds(value: float | None, like: float | None = None) -> str:
    """Format milliseconds as s, ms or µs."""
    return duration(*(None if ms is None else ms / 1e3 for ms in (value, like)))


def nanoseconds(value: float) -> str:
    """Format nanoseconds as s, ms or µs."""
    return duration(value / 1e9)


def percent(fraction: float | None, *, decimals: int | None = None) -> str:
    """Format a share as a percentage: 42%, 4.2%, 0.42%. A share that is almost 0 is <0.01%.

    `decimals` is a fixed number of decimals, for a column or a sentence that keeps one precision.
    """
    if fraction is None or math.isnan(fraction):
        return DASH
    if math.isinf(fraction):
        return "∞" if fraction > 0 else "−∞"
    value = abs(fraction) * 100
    sign = "−" if fraction < 0 else ""
    if decimals is not None:
        return f"{sign}{value:.{decimals}f}%"
    if value and value < 0.005:
        return "≈0%" if sign else "<0.01%"
    decimals = 2 if value < 0.995 else 1 if value < 9.95 else 0
    return f"{sign}{value:.{decimals}f}%" if value else "0%"


def count(number: float) -> str:
    """Format how often something happens on average: 0.25, 1, 1.5, 1,230."""
    return f"{number:.3g}" if abs(number) < 999.5 else f"{number:,.0f}"


def counted(number: int, noun: str) -> str:
    """Format a number of things, the noun in its singular or plural: "1 trial", "2 trials"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def one_line(text: str) -> str:
    """Return a text from outside on one line, without characters that control a terminal."""
    return "".join(c for c in " ".join(text.split()) if c.isprintable())


def num_bytes(count: float | None, like: float | None = None) -> str:
    """Format a size in GB, MB, kB (powers of 1000), or whole bytes."""
    if like is None and count is not None and abs(count) < 999.5:
        return f"{count:.0f} B".replace("-", "−")
    return in_unit(count, _SIZES, like)


def bytes_change(count: int) -> str:
    """Format a change of memory in bytes, with its sign. Below 1,024 bytes it is 0."""
    if abs(count) < 1024:
        return "0"
    return ("+" if count > 0 else "−") + num_bytes(abs(count))


def operations(count: float | None, *, short: bool = False) -> str:
    """Format a number of floating-point operations in GFLOP and so on. If `short`, "FLOP" is left out."""
    text = in_unit(count, _OPERATIONS)
    return text.replace("FLOP", "").rstrip() if short else text
