"""Show a profile in a notebook."""

from whet.profiling.model.report import Report
from whet.profiling.model.show import folded_sections, layer_cells, operator_cells, section_cells, speed
from whet.ui import html_tables
from whet.ui.figures import duration, one_line, percent

_ROWS = 12  # of each table
_LAYERS = ("layer", "kind", "time", "share", "FLOPs", "bytes", "F/B", "bound", "limit")
_SECTIONS = ("section", "calls", "total", "self", "busy")
_OPERATORS = ("operator", "shapes", "calls", "self", "total")


def report_html(report: Report) -> str:
    tables = [
        html_tables.table(_SECTIONS, _sections(report), caption="sections", numbers=range(1, 5)),
        html_tables.table(_LAYERS, _layers(report), caption="layers, one call", numbers=(2, 3, 4, 5, 6, 8)),
        html_tables.table(_OPERATORS, _operators(report), caption="operators", numbers=(2, 3, 4)),
    ]
    notes = [f"partial: {report.partial}"] if report.partial else []
    notes += [f"The machine was busy: {report.busy}. Times may be too long."] if report.busy else []
    return html_tables.block(
        html_tables.paragraph(_heading(report), is_strong=True),
        html_tables.paragraph(report.verdict.text if report.verdict else ""),
        html_tables.paragraph("\n".join(notes)),
        html_tables.paragraph(_latency(report)),
        *tables,
        html_tables.paragraph("\n".join((*report.notes, *(leak.sentence for leak in report.leaks or ())))),
    )


def _heading(report: Report) -> str:
    if report.verdict is None:
        return report.name
    share = report.verdict.share_of_limit
    at = "" if share is None else f", at {percent(share)} of the machine's limit"
    return f"{report.name}: {report.verdict.bound.upper()}{at}"


def _latency(report: Report) -> str:
    latency = report.latency
    if latency is None:
        return f"whole block {duration(report.wall_s)}" if report.wall_s else ""
    times = f"one call {duration(latency.median_ms / 1e3)}, P90 {duration(latency.p90_ms / 1e3)}"
    return f"{times}; {speed(latency)}"


def _sections(report: Report) -> list[tuple[str, ...]]:
    ranked = sorted(folded_sections(report.sections), key=lambda section: -section.total_s)[:_ROWS]
    return [(one_line(".".join(section.path)), *section_cells(section)) for section in ranked]


def _layers(report: Report) -> list[tuple[str, ...]]:
    ranked = sorted(report.layers, key=lambda layer: -layer.time_s)
    return [layer_cells(layer, report.layers_s or 1.0) for layer in ranked[:_ROWS]]


def _operators(report: Report) -> list[tuple[str, ...]]:
    if report.operators is None:
        return []
    costs = report.operators.costs[:_ROWS]
    return [(one_line(cost.name), one_line(cost.shapes), *operator_cells(cost)) for cost in costs]
