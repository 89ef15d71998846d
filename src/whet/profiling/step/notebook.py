"""Show in a notebook where the time of a training step goes."""

from whet.profiling.step.report import PhaseTime, StepReport
from whet.ui import html_tables
from whet.ui.figures import DASH, count, digits, percent


def report_html(report: StepReport) -> str:
    rows = [_row(phase) for phase in report.phases]
    if report.step_ms is not None:
        rows.append(("step", digits(report.step_ms), "100%", ""))
    partial = f"partial: the loop ended early ({report.ended_by})" if report.is_partial else ""
    busy = f"The machine was busy: {report.busy}." if report.busy else ""
    sentences = (*report.evidence[1:], report.advice, partial, busy, *report.notes())
    return html_tables.block(
        html_tables.paragraph(report.sentence, is_strong=True),
        html_tables.table(("phase", "ms a step", "share", "calls"), rows, numbers=(1, 2, 3)),
        html_tables.paragraph("\n".join(sentence for sentence in sentences if sentence)),
    )


def _row(phase: PhaseTime) -> tuple[str, str, str, str]:
    if phase.ms is None or phase.share is None:
        return phase.name, DASH, DASH, phase.absent
    return phase.name, digits(phase.ms), percent(phase.share, decimals=1), count(phase.calls)
