"""One line a finding: where, what, how much."""

from __future__ import annotations

from whet_audit.finding import Finding
from whet_audit.formats import wording
from whet_audit.report import Report


def render(report: Report, *, colour: bool = False) -> str:
    """FILE:LINE:COLUMN: CODE [*] message (priority, gain). [*]: --fix repairs it, [!]: with --unsafe-fixes."""
    return "\n".join([*map(_line, report.findings), report.summary()])


def _line(finding: Finding) -> str:
    mark = ""
    if finding.fix is not None and finding.cell is None:
        mark = "[*] " if finding.fix.is_safe else "[!] "
    size = wording.measured(finding.measured) if finding.measured else wording.gain(finding.gain)
    message = wording.one_line(finding.message)
    return f"{wording.place(finding)}: {finding.code} {mark}{message} ({finding.priority}, {size})"
