"""Show a load test in a notebook."""

from whet.server.load_test.report import Report
from whet.server.load_test.terminal import LATENCIES, latency_rows, rows, sent
from whet.ui import html_tables


def report_html(report: Report) -> str:
    busy = f"The machine was busy: {report.busy}. These figures cannot be trusted." if report.busy else ""
    return html_tables.block(
        html_tables.paragraph(f"{report.model} at {report.url}", is_strong=True),
        html_tables.paragraph(sent(report)),
        html_tables.table(("latency", *LATENCIES), latency_rows(report.figures), numbers=range(1, 7)),
        html_tables.table((), [(name, value) for name, value, _ in rows(report)]),
        html_tables.paragraph(busy),
        html_tables.paragraph("\n".join(report.notes)),
    )
