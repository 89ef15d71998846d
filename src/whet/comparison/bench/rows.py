"""The figures of a sweep's points as people read them, for the terminal and for notebooks."""

from whet.comparison.bench.report import Point
from whet.ui.figures import percent

COLUMNS = ("P50 ms", "P90 ms", "P99 ms", "per s", "of limit", "peak MB")
MEMORY_COLUMNS = ("work MB", "live MB")
ENERGY_COLUMNS = ("J per call",)

_NOT_AVAILABLE = "n/a"


def cells(point: Point, *, with_memory: bool = False, with_energy: bool = False) -> list[str]:
    """Return a point's figures, in the order of the columns. What was not measured is a dash."""
    found = [
        _number(point.p50_ms),
        _number(point.p90_ms),
        _number(point.p99_ms),
        _number(point.throughput_per_s),
        "-" if point.share_of_limit is None else percent(point.share_of_limit, decimals=0),
        _megabytes(point.peak_bytes),
    ]
    if with_memory:
        found += [_megabytes(point.working_bytes), _megabytes(point.live_tensor_bytes)]
    if with_energy:
        found.append(_NOT_AVAILABLE if point.energy_j is None else _number(point.energy_j))
    return found


def _number(value: float | None) -> str:
    """Return three figures, so that a column can be read at a glance."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _megabytes(num_bytes: int | None) -> str:
    return "-" if num_bytes is None else f"{num_bytes / 1e6:,.0f}"
