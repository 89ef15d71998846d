"""Figures of traces as people read them, beside those of whet.figures."""

from whet.figures import duration


def percent(share: float) -> str:
    """42%, 4.2%; what is there but next to nothing: <0.1%."""
    value = share * 100
    if 0 < value < 0.1:
        return "<0.1%"
    return f"{value:.1f}%" if value < 9.95 and value else f"{value:.0f}%"


def time(time_ns: float) -> str:
    """Three significant digits, in s, ms or µs."""
    return duration(time_ns / 1e9)
