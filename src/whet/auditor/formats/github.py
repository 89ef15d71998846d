"""Workflow commands that GitHub shows beside the lines of a pull request.

Source: GitHub's documentation, "Workflow commands for GitHub Actions".
"""

from __future__ import annotations

from whet.auditor.finding import Finding, Priority
from whet.auditor.formats import wording
from whet.auditor.report import Report

_LEVELS = {Priority.HIGH: "error", Priority.MEDIUM: "warning", Priority.LOW: "notice"}


def render(report: Report, *, colour: bool = False) -> str:
    """A command a finding, and one for each file that was not audited."""
    lines = [_command(finding) for finding in report.findings]
    for problem in report.problems:
        where = {"file": problem.path, **({"line": problem.line} if problem.line else {}), "title": "whet audit"}
        lines.append(_workflow_command("error", where, problem.message))
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
    return _workflow_command(_LEVELS[finding.priority], where, text + fix)


def _workflow_command(level: str, properties: dict[str, object], message: str) -> str:
    named = ",".join(f"{name}={escaped(str(value), is_property=True)}" for name, value in properties.items())
    return f"::{level} {named}::{escaped(message)}"


def escaped(text: str, *, is_property: bool = False) -> str:
    """Text as a workflow command carries it."""
    pairs = [("%", "%25"), ("\r", "%0D"), ("\n", "%0A")]
    if is_property:
        pairs += [(":", "%3A"), (",", "%2C")]
    for plain, code in pairs:
        text = text.replace(plain, code)
    return text
