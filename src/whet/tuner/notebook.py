"""Show a tuning run, and a recipe that was applied, in a notebook."""

from pathlib import Path

from whet.tuner import figures
from whet.tuner.apply import Applied
from whet.tuner.result import MeasuredVariant, Result
from whet.ui import html_tables

_COLUMNS = ("variant", "latency", "speedup", "95%", "faster?", "quality", "size", "memory")


def result_html(result: Result) -> str:
    rows = [_row(result, point) for point in figures.final_points(result)]
    places = f"recipe, report and model: {figures.shortened(result.directory)}" if result.out else ""
    return html_tables.block(
        html_tables.paragraph(figures.one_line(result.sentence), is_strong=True),
        html_tables.table(_COLUMNS, rows, caption=figures.one_line(result.target), numbers=range(1, len(_COLUMNS))),
        html_tables.paragraph(f"The machine was busy: {result.busy}." if result.busy else ""),
        html_tables.paragraph(places),
    )


def applied_html(applied: Applied) -> str:
    before = figures.DASH if applied.quality_baseline is None else f"{applied.quality_baseline:.4g}"
    after = figures.DASH if applied.quality is None else f"{applied.quality:.4g}"
    sizes = [figures.num_bytes(size or None) for size in (applied.original_bytes, applied.size_bytes)]
    return html_tables.block(
        html_tables.paragraph(f"applied: {' + '.join(map(str, applied.steps)) or 'nothing'}", is_strong=True),
        html_tables.table(
            ("", "before", "after"), [(applied.quality_name, before, after), ("size", *sizes)], numbers=(1, 2)
        ),
        html_tables.table(("left out", "why"), [(str(step), why) for step, why in applied.dropped]),
        html_tables.paragraph("\n".join((*applied.doubts, *applied.notes, *applied.differences))),
        html_tables.paragraph(f"model: {figures.shortened(Path(applied.out))}" if applied.out else "nothing was saved"),
    )


def _row(result: Result, point: MeasuredVariant) -> tuple[str, ...]:
    is_shown = bool(point.steps) and not point.doubt  # a factor that cannot be believed is not shown
    cosine = point.agreement.cosine if point.agreement else None
    name = " + ".join(step.technique for step in point.steps) or "original"
    if point.label == result.best.label:
        name += " (winner)" if point.steps else " (kept)"
    return (
        figures.one_line(name),
        figures.duration(point.latency_ms, like=result.baseline.latency_ms),
        figures.ratio(point.speedup) if is_shown else figures.DASH,
        figures.interval(point.speedup_ci95) if is_shown else figures.DASH,
        point.verdict or figures.DASH,
        figures.score(point.quality) if figures.has_metric(result) else f"cosine {figures.cosine(cosine)}",
        figures.num_bytes(point.size_bytes or None),
        figures.num_bytes(point.peak_bytes or None),
    )
