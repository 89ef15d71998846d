"""Show an audit in a notebook: a row for each finding."""

from __future__ import annotations

from whet_audit import html_tables
from whet_audit.formats import wording
from whet_audit.report import Report

_COLUMNS = ("where", "code", "finding", "priority", "gain", "fix")


def report_html(report: Report) -> str:
    """Return the summary, the findings, and what each measured fix is worth, as tables."""
    rows = []
    for finding in report.findings:
        size = wording.measured(finding.measured) if finding.measured else wording.gain(finding.gain)
        fix = "" if finding.fix is None else "safe" if finding.fix.is_safe else "unsafe"
        message = wording.one_line(finding.message)
        rows.append((wording.place(finding), finding.code, message, str(finding.priority), size, fix))
    trials = report.impact.trials if report.impact else ()
    measured = [
        (trial.label, trial.status, wording.measured(trial.evidence) if trial.evidence else trial.why)
        for trial in trials
    ]
    return html_tables.block(
        html_tables.paragraph(report.summary(), is_strong=True),
        html_tables.table(_COLUMNS, rows),
        html_tables.table(("fixes", "outcome", "measured"), measured),
        html_tables.paragraph("\n".join((*(problem.text for problem in report.problems), *report.notes))),
    )
