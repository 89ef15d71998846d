"""Figures of steps as people read them: three significant digits, never in powers of ten."""

import math


def milliseconds(ms: float) -> str:
    """Without the unit, zeros kept: 0.0123, 1.20, 12.0, 1,230."""
    rounded = float(f"{ms:.3g}")
    decimals = 2 - math.floor(math.log10(abs(rounded))) if rounded else 2
    return f"{rounded:,.{min(4, max(0, decimals))}f}"


def count(number: float) -> str:
    """How often, on average: 0.25, 1, 1.5, 1,230."""
    return f"{number:.3g}" if abs(number) < 999.5 else f"{number:,.0f}"


def size(num_bytes: float) -> str:
    """Bytes, with a unit of 1024: 7.6 KiB."""
    for unit in ("B", "KiB", "MiB"):
        if abs(num_bytes) < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} GiB"


def percent(share: float, *, decimals: int = 0) -> str:
    return f"{share * 100:.{decimals}f} %"
