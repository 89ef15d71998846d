"""SARIF, the Static Analysis Results Interchange Format 2.1.0 (OASIS standard), as code scanning takes it."""

from __future__ import annotations

import ast
import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote

from whet_audit import __version__
from whet_audit.card import Card
from whet_audit.collect import Problem, SourceFile
from whet_audit.finding import Finding, Priority, ReplaceExpression, SetKeyword, Span
from whet_audit.formats import wording
from whet_audit.report import Report

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {Priority.HIGH: "error", Priority.MEDIUM: "warning", Priority.LOW: "note"}


def render(report: Report, *, colour: bool = False) -> str:
    """One run, with a rule for each code that was found."""
    cards = [report.cards[code] for code in sorted({f.code for f in report.findings}) if code in report.cards]
    index = {card.code: number for number, card in enumerate(cards)}
    seen: Counter[str] = Counter()
    run = {
        "tool": {"driver": {"name": "whet audit", "version": __version__, "rules": [_rule(card) for card in cards]}},
        "columnKind": "unicodeCodePoints",
        "invocations": [
            {
                "executionSuccessful": not report.problems,
                "toolExecutionNotifications": [_notification(problem) for problem in report.problems],
            }
        ],
        "results": [_result(f, report.sources.get(f.path), index, seen) for f in report.findings],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _rule(card: Card) -> dict[str, Any]:
    about = "\n".join(f"{name}: {text}" for name, text in card.sections.items())
    shown = "\n\n".join(f"**{name}**\n\n{_as_markdown(name, text)}" for name, text in card.sections.items())
    return {
        "id": card.code,
        "name": "".join(part.capitalize() for part in card.name.split("-")),
        "shortDescription": {"text": card.title or card.name},
        "fullDescription": {"text": card.sections.get("Finds") or card.title or card.name},
        "help": {"text": about or card.title or card.name, "markdown": shown or card.title or card.name},
        "defaultConfiguration": {"level": _LEVELS[card.priority]},
        "properties": {"tags": ["performance", card.code.rstrip("0123456789")], "priority": card.priority.value},
    }


def _as_markdown(name: str, text: str) -> str:
    return f"```python\n{text}\n```" if name in ("Example", "Instead") else text


def _result(finding: Finding, source: SourceFile | None, index: dict[str, int], seen: Counter[str]) -> dict[str, Any]:
    text = f"{finding.message} ({wording.gain(finding.gain)}: {finding.gain.assumption})"
    where = _location(finding.path)
    line = finding.message
    if finding.cell is None:
        where["region"] = _region(finding.span)
    else:  # lines of a cell are not those of the file
        text = f"cell {finding.cell}, line {finding.span.line}: {text}"
    if source is not None:
        line = " ".join(source.line(finding.span.line, finding.cell).split())
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "level": _LEVELS[finding.priority],
        "message": {"text": text},
        "locations": [{"physicalLocation": where}],
        "partialFingerprints": {"whetAudit/v1": _fingerprint(finding, line, seen)},
        "properties": {"confidence": finding.confidence.value, "gain": [finding.gain.low, finding.gain.high]},
    }
    if finding.code in index:
        result["ruleIndex"] = index[finding.code]
    replacements = _replacements(finding, source)
    if replacements and finding.fix is not None:
        change = {"artifactLocation": where["artifactLocation"], "replacements": replacements}
        result["fixes"] = [{"description": {"text": finding.fix.title}, "artifactChanges": [change]}]
    return result


def _notification(problem: Problem) -> dict[str, Any]:
    where = _location(problem.path)
    if problem.line:
        where["region"] = {"startLine": problem.line}
    return {"level": "error", "message": {"text": problem.message}, "locations": [{"physicalLocation": where}]}


def _location(path: str) -> dict[str, Any]:
    scheme = "file://" if Path(path).is_absolute() else ""
    return {"artifactLocation": {"uri": scheme + quote(path, errors="replace")}}


def _region(span: Span) -> dict[str, int]:
    return {
        "startLine": span.line,
        "startColumn": span.column + 1,
        "endLine": span.end_line,
        "endColumn": span.end_column + 1,
    }


def _fingerprint(finding: Finding, line: str, seen: Counter[str]) -> str:
    """The same where lines move; told apart by a count where the same line comes twice."""
    key = "\0".join((finding.path, finding.code, line))
    seen[key] += 1
    return hashlib.sha256(f"{key}\0{seen[key]}".encode(errors="replace")).hexdigest()[:32]


def _replacements(finding: Finding, source: SourceFile | None) -> list[dict[str, Any]]:
    """The fix as replaced text, where it is one that can be told without parsing the file; else nothing."""
    if finding.fix is None or finding.cell is not None or source is None:
        return []
    made = []
    for edit in finding.fix.edits:
        if isinstance(edit, ReplaceExpression):
            made.append((edit.expression, edit.source))
        elif isinstance(edit, SetKeyword) and (change := _keyword(edit, source)) is not None:
            made.append(change)
        else:
            return []
    return [{"deletedRegion": _region(span), "insertedContent": {"text": text}} for span, text in made]


def _keyword(edit: SetKeyword, source: SourceFile) -> tuple[Span, str] | None:
    """Where a keyword goes in a call of one line, and what is put there."""
    span = edit.call
    line = source.line(span.line)
    text = line[span.column : span.end_column]
    if span.line != span.end_line or not text.isascii() or not text.endswith(")"):
        return None
    try:
        call = ast.parse(text, mode="eval").body
    except SyntaxError:
        return None
    if not isinstance(call, ast.Call) or any(isinstance(argument, ast.GeneratorExp) for argument in call.args):
        return None
    for keyword in call.keywords:
        if keyword.arg == edit.name:
            value = keyword.value
            start, end = span.column + value.col_offset, span.column + (value.end_col_offset or 0)
            return Span(span.line, start, span.line, end), edit.value
    before = text[:-1].rstrip()
    gap = "" if before.endswith("(") else " " if before.endswith(",") else ", "
    at = span.column + len(before)
    return Span(span.line, at, span.line, span.end_column - 1), f"{gap}{edit.name}={edit.value}"
