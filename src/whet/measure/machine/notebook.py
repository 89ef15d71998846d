"""Show measured limits in a notebook, and format the rows that the terminal shows as well."""

from collections.abc import Iterable

from whet.measure.machine.limits import Limits
from whet.ui import html_tables

COLUMNS = ("limit", "reached", "of float32")

_NAMES = {"tfloat32": "tf32", "float8_e4m3fn": "float8"}


def rate_rows(limits: Limits) -> list[tuple[str, str, str]]:
    """Return the limits of a device as people read them, in the order of the columns."""
    rows = []
    for dtype, rate in limits.gemm.items():
        ratio = rate / limits.gemm["float32"] if "float32" in limits.gemm else float("nan")
        rows.append((f"matrix product, {_NAMES.get(dtype, dtype)}", f"{rate / 1e9:,.0f} GFLOP/s", f"{ratio:.2f}x"))
    rows.append(("read from memory", f"{limits.read_bandwidth / 1e9:,.0f} GB/s", ""))
    for size, rate in limits.cached_bandwidth[::3]:
        rows.append((f"read {binary_size(size)} again and again", f"{rate / 1e9:,.0f} GB/s", ""))
    rows.append(("call the smallest operator", f"{limits.operator_s * 1e6:.1f} µs", ""))
    return rows


def limits_html(limits: Limits) -> str:
    return all_limits_html([limits])


def all_limits_html(limits: Iterable[Limits]) -> str:
    parts = []
    for found in limits:
        caption = f"measured limits, {found.device}"
        parts += [html_tables.table(COLUMNS, rate_rows(found), caption=caption, numbers=(1, 2))]
        parts += [html_tables.paragraph("\n".join(found.notes))]
    return html_tables.block(*parts)


def binary_size(num_bytes: int) -> str:
    """Format a size that is a power of two: 64 B, 16 KiB, 4 MiB."""
    for unit, scale in (("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.0f} {unit}"
    return f"{num_bytes} B"
