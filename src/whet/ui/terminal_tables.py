"""Make the tables that whet shows on a terminal."""

from collections.abc import Sequence

from rich import box
from rich.table import Table


def plain_table(names: Sequence[str] = (), figures: Sequence[str] = (), *, gap: int = 1) -> Table:
    """Return a table without lines but under its head, with columns of names and of figures, `gap` spaces apart."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, gap, 0, 0), pad_edge=False, header_style="dim", show_edge=False)
    for name in names:  # on a narrow terminal these columns shrink; their cells do not wrap
        table.add_column(name, overflow="ellipsis")
    for name in figures:
        table.add_column(name, justify="right", no_wrap=True)
    return table
