"""Show sweeps and verdicts on the terminal, at 80 columns."""

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from whet.comparison.bench.formats import sentence
from whet.comparison.bench.report import BenchmarkVerdict, Gate, Point, Sweep
from whet.comparison.bench.rows import COLUMNS, ENERGY_COLUMNS, MEMORY_COLUMNS, cells
from whet.ui.figures import percent

_STYLES = {"pass": "green", "fail": "bold red", "inconclusive": "yellow"}


def show_sweep(console: Console, sweep: Sweep, *, with_memory: bool, with_energy: bool) -> None:
    for target in dict.fromkeys(point.target for point in sweep.points):
        points = [point for point in sweep.points if point.target == target]
        table = Table(title=target, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        names = [name for name in ("batch", "seq") if any(name in point.sizes for point in points)]
        columns = [*names, *COLUMNS, *(MEMORY_COLUMNS if with_memory else ()), *(ENERGY_COLUMNS if with_energy else ())]
        for name in columns:
            head, _, unit = name.rpartition(" ")
            table.add_column(f"{head}\n{unit}" if head else unit, justify="right", no_wrap=True)
        for point in points:
            table.add_row(
                *(str(point.sizes[name]) for name in names),
                *cells(point, with_memory=with_memory, with_energy=with_energy),
            )
        console.print(table)


def show_growth(console: Console, sweep: Sweep) -> None:
    """Show a line for each exponent that could be fitted, as "time grows as batch^0.9 (0.8 to 1.0)"."""
    for target, growths in sweep.growth.items():
        for growth in growths:
            interval = " (no interval: as many sizes as unknowns)"
            if growth.ci95 is not None:
                interval = f" (95% interval {growth.ci95[0]:.2f} to {growth.ci95[1]:.2f})"
            console.print(
                f"{target}: {growth.quantity} grows as {growth.against}^{growth.exponent:.2f}{interval}",
                highlight=False,
            )


def show_notes(console: Console, sweep: Sweep, *, with_energy: bool) -> None:
    """Show what could not be measured, and why."""
    for point in sweep.points:
        if point.busy:
            console.print(Text(f"{point.label}: these figures cannot be trusted: {point.busy}", style="yellow"))
        if point.status != "done":
            console.print(Text(f"{point.label}: {point.status}: {point.reason}", style="yellow"))
    if with_energy:
        for text in dict.fromkeys(p.energy_reason for p in sweep.points if p.energy_reason):
            console.print(f"energy: not available here: {text}", highlight=False)
    for point in sweep.points:
        if point.latency_ms is not None and point.share_of_limit is None:
            console.print(Text(f"{point.label}: the share of the limit is not known: {_why_no_share(point)}"))
    if any(point.latency_ms is not None and point.p99_ms is None for point in sweep.points):
        console.print("P99 needs 500 calls: raise --budget", highlight=False)


def _why_no_share(point: Point) -> str:
    if point.busy:
        return "the machine was busy"
    if point.status != "done":
        return "the measurement ended early"
    return "the model's operations cannot be counted, as in a compiled or scripted model"


def show_gate(console: Console, gate: Gate) -> None:
    for verdict in gate.verdicts:
        console.print(show_verdict(verdict))
    line = Text(gate.outcome.upper(), style=_STYLES[gate.outcome])
    line.append(f": {gate.compared}, tolerance {percent(gate.tolerance, decimals=1)}", style="default")
    console.print(line)


def show_verdict(verdict: BenchmarkVerdict) -> Text:
    """Return a verdict as "PASS digits-cnn: 0.3% slower (…)"."""
    text = Text(f"{verdict.outcome.upper():<12} ", style=_STYLES[verdict.outcome])
    return text.append(f"{verdict.label}: {sentence(verdict)}", style="default")
