"""Show on a terminal what `whet tune` found out about a stream."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from whet.cli.tables import VERDICTS, show_files, show_verdict
from whet.core.recipe_file import FILE as RECIPE
from whet.tuner import figures
from whet.tuner.result import FILE, MeasuredVariant, Result
from whet.tuner.streams.report import QUALITY, quality_figure
from whet.tuner.time_account import time_sentence
from whet.ui.terminal_tables import plain_table


def show_result(console: Console, result: Result) -> None:
    """Show the verdict, then the original and what was found side by side, within 80 columns."""
    show_verdict(console, result, _table)
    if not result.is_disturbed:
        for line in [*result.hints, time_sentence(result.time_s)]:
            console.print(Text(figures.one_line(line), "dim"))
    show_files(console, result, {"report": "report.html", "recipe": RECIPE, "result": FILE})
    console.print(Text.assemble(("stream  ", "dim"), result.unsaved.rpartition(": ")[2]), overflow="fold")


def _table(result: Result) -> Table:
    table = plain_table(gap=2)
    table.add_column("")
    table.add_column("original", justify="right")
    found = next(iter(figures.final_points(result)[1:]), None)
    if found is not None:
        table.add_column("found" if not result.best.steps else "winner", justify="right")
    columns = [result.baseline, *([found] if found is not None else [])]
    for name, cells in _rows(columns).items():
        if any(text != figures.DASH for text in cells):
            table.add_row(name, *cells)
    return table


def _rows(points: list[MeasuredVariant]) -> dict[str, list[str]]:
    rows = {
        "frames/s": [figures.digits(point.throughput_per_s) for point in points],
        "a frame": [figures.duration(point.latency_ms) for point in points],
        "P99 of a frame": [figures.DASH if p.p99_ms is None else figures.duration(p.p99_ms) for p in points],
        "speedup": [figures.ratio(point.speedup) if point.steps else figures.DASH for point in points],
        "95%": [figures.interval(point.speedup_ci95) if point.steps else figures.DASH for point in points],
        "faster?": [VERDICTS.get(point.verdict, (figures.DASH, ""))[0] for point in points],
    }
    return rows | {words: [quality_figure(point, name) for point in points] for name, words in QUALITY.items()}
