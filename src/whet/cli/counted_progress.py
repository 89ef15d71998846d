"""Show a bar of how many of a known number are done, on a terminal only."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


def counted_progress(console: Console, *, refresh_per_second: float = 10) -> Progress:
    """Return a bar that disappears at its end. It shows nothing where the console is no terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
        refresh_per_second=refresh_per_second,
    )
