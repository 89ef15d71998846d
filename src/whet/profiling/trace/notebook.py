"""Show a trace, and what changed between two traces, in a notebook."""

from whet.profiling.trace.changes import Change, Figure, TraceChanges
from whet.profiling.trace.report import TraceReport
from whet.ui import html_tables
from whet.ui.figures import DASH, nanoseconds, one_line, percent

_ROWS = 12  # of each table


def report_html(report: TraceReport) -> str:
    account = [(str(entry.entry), nanoseconds(entry.time_ns), percent(entry.share)) for entry in report.account]
    kernels = [(one_line(kernel.name), nanoseconds(kernel.total_ns)) for kernel in report.kernels[:_ROWS]]
    operators = [(one_line(one.name), nanoseconds(one.self_ns)) for one in report.operators[:_ROWS]]
    return html_tables.block(
        html_tables.paragraph(f"{report.verdict.bound}: {report.verdict.sentence}", is_strong=True),
        html_tables.paragraph(report.verdict.advice),
        html_tables.table(("where the time went", "time", "share"), account, numbers=(1, 2)),
        html_tables.table(("kernel or copy", "in all"), kernels, numbers=(1,)),
        html_tables.table(("operator", "self time"), operators, numbers=(1,)),
        html_tables.paragraph("\n".join(report.notes)),
    )


def changes_html(changes: TraceChanges) -> str:
    unit = "per step" if changes.per_step else "in all"
    figures = [(one.name, figure_value(one, one.before), figure_value(one, one.after)) for one in changes.figures]
    columns = ("", "before", "after")
    tables = [html_tables.table(columns, figures, caption=f"figures, {unit}", numbers=(1, 2))]
    for caption, found in (("kernels and copies", changes.kernels), ("operators, self time", changes.operators)):
        changed = [one for one in found if one.change is not Change.SAME][:_ROWS]
        rows = [
            (one_line(one.name), nanoseconds(one.before_ns), nanoseconds(one.after_ns), str(one.change))
            for one in changed
        ]
        tables.append(html_tables.table((*columns, ""), rows, caption=f"{caption}, {unit}", numbers=(1, 2)))
    return html_tables.block(html_tables.paragraph(changes.sentence, is_strong=True), *tables)


def counted(value: float) -> str:
    """Return a number of calls, which may be a mean over the steps: 1,230, 2.5."""
    return f"{value:,.0f}" if abs(value - round(value)) < 1e-9 else f"{value:,.1f}"


def figure_value(figure: Figure, value: float | None) -> str:
    """Return one side of a figure in its unit."""
    if value is None:
        return DASH
    if figure.unit == "ns":
        return nanoseconds(value)
    return percent(value) if figure.unit == "share" else counted(value)
