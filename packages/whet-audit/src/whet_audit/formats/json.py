"""One JSON object, for other programs."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from whet_audit.card import Card
from whet_audit.finding import Finding, Priority
from whet_audit.formats import wording
from whet_audit.report import Report

FORMAT = 1


def render(report: Report, *, colour: bool = False) -> str:
    """Keys: format, findings, problems, notes, summary. Lines and columns count from 1, ends are exclusive."""
    content = {
        "format": FORMAT,
        "findings": [_finding(one, report.cards.get(one.code)) for one in report.findings],
        "problems": [asdict(problem) for problem in report.problems],
        "notes": list(report.notes),
        "summary": {
            "num_files": report.num_files,
            "num_lines": report.num_lines,
            "num_findings": len(report.findings),
            **{f"num_{priority.value}": len(report.of(priority)) for priority in Priority},
            "num_fixable": len(report.fixable(is_safe=True)),
            "num_fixable_unsafe": len(report.fixable(is_safe=False)),
            "num_fixed": report.num_fixed,
            "num_known": report.num_known,
            "num_gone": report.num_gone,
            "num_unsure": report.num_unsure,
            "num_files_left_out": report.num_left_out,
        },
    }
    return json.dumps(content, indent=2)


def _finding(finding: Finding, card: Card | None) -> dict[str, Any]:
    span, hot, fix = finding.span, finding.hot, finding.fix
    return {
        "code": finding.code,
        "name": finding.name,
        "path": finding.path,
        "cell": finding.cell,
        "line": span.line,
        "column": span.column + 1,
        "end_line": span.end_line,
        "end_column": span.end_column + 1,
        "message": finding.message,
        "priority": finding.priority.value,
        "confidence": finding.confidence.value,
        "gain": asdict(finding.gain),
        "loop": None if hot is None else {**asdict(hot), "text": hot.text, "often": hot.often},
        "cost": round(finding.cost, 6),
        "cause": finding.cause,
        "do": wording.remedy(finding, card),
        "fix": None if fix is None else {"title": fix.title, "is_safe": fix.is_safe},
        "measured": None if finding.measured is None else asdict(finding.measured),
    }
