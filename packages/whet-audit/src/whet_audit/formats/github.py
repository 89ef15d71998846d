"""Workflow commands that GitHub shows beside the lines of a pull request."""

from __future__ import annotations

from whet_audit.finding import Finding, Priority
from whet_audit.formats import wording
from whet_audit.report import Report
from whet_audit.workflow_commands import workflow_command

_LEVELS = {Priority.HIGH: "error", Priority.MEDIUM: "warning", Priority.LOW: "notice"}


def render(report: Report, *, colour: bool = False) -> str:
    """A command a finding, and one for each file that was not audited."""
    lines = [_command(finding) for finding in report.findings]
    for problem in report.problems:
        where = {"file": problem.path, **({"line": problem.line} if problem.line else {}), "title": "whet audit"}
        lines.append(workflow_command("error", where, problem.message))
    return "\n".join(lines)


def _command(finding: Finding) -> str:
    span = finding.span
    where: dict[str, object] = {"file": finding.path}
    text = f"{finding.message} ({wording.gain(finding.gain)}: {finding.gain.assumption})"
    if finding.cell is None:
        where |= {"line": span.line, "endLine": span.end_line}
        if span.line == span.end_line:  # GitHub takes columns within one line only
            where |= {"col": span.column + 1, "endColumn": span.end_column + 1}
    else:
        text = f"cell {finding.cell}, line {span.line}: {text}"
    fix = f"\nfix: {wording.fix(finding)}" if finding.fix is not None else ""
    where["title"] = f"{finding.code} {finding.name}"
    return workflow_command(_LEVELS[finding.priority], where, text + fix)
