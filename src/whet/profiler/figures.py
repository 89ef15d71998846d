"""Figures of a profile as people read them, beside those of whet.figures."""

import math

from whet.figures import DASH, num_bytes


def signed(count: int) -> str:
    """Growth, with its sign; under a page it is none."""
    if abs(count) < 1024:
        return "0"
    return ("+" if count > 0 else "−") + num_bytes(abs(count))


def percent(fraction: float | None) -> str:
    if fraction is None or not math.isfinite(fraction):
        return DASH
    return f"{fraction * 100:.{1 if fraction < 0.0995 else 0}f}%"
