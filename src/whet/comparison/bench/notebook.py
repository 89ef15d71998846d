"""Show a sweep and a gate in a notebook."""

from whet.comparison.bench.formats import sentence
from whet.comparison.bench.report import Gate, Sweep
from whet.comparison.bench.rows import COLUMNS, cells
from whet.ui import html_tables
from whet.ui.figures import percent


def sweep_html(sweep: Sweep) -> str:
    """Return a table for each target, with a row for each size."""
    tables = []
    for target in dict.fromkeys(point.target for point in sweep.points):
        points = [point for point in sweep.points if point.target == target]
        sizes = [name for name in ("batch", "seq") if any(name in point.sizes for point in points)]
        rows = [[*(str(point.sizes.get(name, "")) for name in sizes), *cells(point)] for point in points]
        columns = [*sizes, *COLUMNS]
        tables.append(html_tables.table(columns, rows, caption=target, numbers=range(len(columns))))
    notes = [f"{p.label}: these figures cannot be trusted: {p.busy}" for p in sweep.points if p.busy]
    notes += [f"{p.label}: {p.status}: {p.reason}" for p in sweep.points if p.status != "done"]
    return html_tables.block(*tables, html_tables.paragraph("\n".join(notes)))


def gate_html(gate: Gate) -> str:
    """Return the outcome, and a row for each verdict."""
    rows = [(verdict.outcome.upper(), verdict.label, sentence(verdict)) for verdict in gate.verdicts]
    return html_tables.block(
        html_tables.paragraph(
            f"{gate.outcome.upper()}: {gate.compared}, tolerance {percent(gate.tolerance, decimals=1)}", is_strong=True
        ),
        html_tables.table(("verdict", "benchmark", "change"), rows),
    )
