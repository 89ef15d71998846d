"""Figures of traces as people read them, with their unit."""


def percent(share: float) -> str:
    """42%, 4.2%; what is there but next to nothing: <0.1%."""
    value = share * 100
    if 0 < value < 0.1:
        return "<0.1%"
    return f"{value:.1f}%" if value < 9.95 and value else f"{value:.0f}%"


def time(time_ns: float) -> str:
    """Three significant digits, in s, ms or µs: 1.23 s, 12.3 ms, 123 µs."""
    if not time_ns:
        return "0 µs"
    unit, scale = next(((u, s) for u, s in (("s", 1e9), ("ms", 1e6)) if abs(time_ns) >= 0.9995 * s), ("µs", 1e3))
    value = float(f"{time_ns / scale:.3g}")
    size = abs(value)
    decimals = 2 if size < 10 else 1 if size < 100 else 0
    return f"{value:,.{decimals}f} {unit}".replace("-", "−")


def size(num_bytes: float) -> str:
    """Three significant digits, in GB, MB, kB (powers of 1000) or B; a rate with "/s" behind it."""
    unit, scale = next(
        ((u, s) for u, s in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if num_bytes >= 0.9995 * s), ("B", 1)
    )
    value = num_bytes / scale
    return f"{value:.3g} {unit}" if value < 999.5 else f"{float(f'{value:.3g}'):,.0f} {unit}"
