"""Show the summary on a terminal."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from whet.scripts.monitor.figures import cut_short, status, table
from whet.scripts.monitor.summary import Summary

_STYLES = {"good": "green", "bad": "bold red", "quiet": "bold"}


def show_summary(console: Console, summary: Summary) -> None:
    """Print the summary as a sentence and a table that fits 80 columns."""
    word, kind = status(summary, running=False)
    console.print()
    console.print(Text.assemble(("whet monitor  ", "bold"), summary.name, "  ", (word, _STYLES[kind])))
    if summary.is_partial:
        console.print(Text(cut_short(summary), "red"))
    console.print(Text(summary.sentence))
    grid = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in table(summary):
        grid.add_row(Text(name), Text(value))
    console.print(grid)
    for note in summary.notes:
        console.print(Text(f"note: {note}"))
