"""Figures of steps as people read them, beside those of whet.figures."""


def count(number: float) -> str:
    """How often, on average: 0.25, 1, 1.5, 1,230."""
    return f"{number:.3g}" if abs(number) < 999.5 else f"{number:,.0f}"


def percent(share: float, *, decimals: int = 0) -> str:
    return f"{share * 100:.{decimals}f} %"
