"""The report as Markdown, for a repository or a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from whet_audit.card import Card
from whet_audit.finding import Finding, Priority
from whet_audit.formats import advice, wording
from whet_audit.report import Impact, Report

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&!])")


def render(report: Report, *, colour: bool = False) -> str:
    """Summary, findings by priority, what to do when, memory, what was measured, validation, how to roll back."""
    lines = ["# Performance audit", "", f"**{_plain(advice.verdict(report))}**", "", *_section("Executive summary")]
    lines += _bullets(advice.summary(report))
    for priority in Priority:
        if report.of(priority):
            lines += _section(f"{priority.capitalize()} priority")
            lines += _findings(report, report.of(priority))
    lines += _section("What to do when")
    for horizon in advice.horizons(report):
        lines += [f"### {horizon.title}", "", f"{horizon.about[:1].upper()}{horizon.about[1:]}.", ""]
        for code, name, group in advice.by_rule(horizon.findings):
            places = ", ".join(_code(wording.place(finding)) for finding in group)
            lines.append(f"- **{code}** {_plain(name)}: {places}")
        lines.append("")
    if not report.findings:
        lines += ["Nothing.", ""]
    lines += [*_section("Batch size and memory"), *_bullets(advice.strategy(report))]
    lines += [*_section("Measured before and after"), *_impact(report.impact)]
    lines += [*_section("Validation"), *_numbered(advice.validation(report))]
    lines += [*_section("Rolling back"), *_bullets(advice.rollback(report))]
    if report.problems or report.notes:
        lines += _section("Not audited")
        lines += _bullets([*(problem.text for problem in report.problems), *report.notes])
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def _section(title: str) -> list[str]:
    return ["", f"## {title}", ""]


def _bullets(sentences: Iterable[str]) -> list[str]:
    return [f"- {_plain(sentence)}" for sentence in sentences]


def _numbered(sentences: Iterable[str]) -> list[str]:
    return [f"{number}. {_plain(sentence)}" for number, sentence in enumerate(sentences, start=1)]


def _findings(report: Report, findings: list[Finding]) -> Iterator[str]:
    for code, name, group in advice.by_rule(tuple(findings)):
        yield f"### {code} {_plain(name)}"
        yield ""
        card = report.cards.get(code)
        yield from _about(card)
        for finding in group:
            yield from _finding(report, finding)


def _about(card: Card | None) -> Iterator[str]:
    if card is None:
        return
    for section in ("Why slow", "Instead"):
        text = card.sections.get(section, "")
        if text and section == "Instead":
            yield from ["Instead:", "", *_fenced(text), ""]
        elif text:
            yield from [f"{section}: {_plain(' '.join(text.split()))}", ""]


def _finding(report: Report, finding: Finding) -> Iterator[str]:
    source = report.sources.get(finding.path)
    yield f"**{_code(wording.place(finding))}** {_plain(finding.message)}"
    yield ""
    if source is not None:
        yield from _fenced(source.line(finding.span.line, finding.cell).strip())
        yield ""
    if finding.hot is not None:
        yield f"- Where: {_plain(finding.hot.text)}"
    known = wording.measured(finding.measured) if finding.measured else "not measured"
    yield f"- Gain: {_plain(wording.gain(finding.gain))}; assumes: {_plain(finding.gain.assumption)}"
    yield f"- Measured: {_plain(known)}"
    yield f"- Confidence: {finding.confidence}"
    if finding.fix is not None:
        yield f"- Fix: {_plain(wording.fix(finding))}"
    yield ""


def _impact(impact: Impact | None) -> Iterator[str]:
    if impact is None:
        yield "Not measured."
        return
    yield f"{_code(impact.command)}"
    yield ""
    if impact.total is None:
        yield f"None of the fixes paid on this machine. {_plain(impact.method)}"
    else:
        yield f"All kept fixes together: **{_plain(wording.measured(impact.total))}**. {_plain(impact.method)}"
        yield ""
        yield f"{_plain(wording.peak(impact.total))}"
    yield from ["", "| Fix | Ratio (95% interval) | Kept |", "|---|---|---|"]
    for trial in impact.trials:
        kept = "yes" if trial.is_kept else f"no: {trial.reason}"
        ratio = wording.ratio(trial.evidence) if trial.evidence is not None else "—"
        yield f"| {_plain(trial.label)} | {_plain(ratio)} | {_plain(kept)} |"
    if impact.phases:
        yield from ["", "| Phase | Before, ms | After, ms |", "|---|---:|---:|"]
        for phase in impact.phases:
            after = "—" if phase.after_ms is None else f"{phase.after_ms:.3g}"
            yield f"| {_plain(phase.name)} | {phase.before_ms:.3g} | {after} |"


def _plain(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(wording.one_line(text).split()))


def _code(text: str) -> str:
    """An inline code span; its fence is longer than any run of backticks in it."""
    text = wording.one_line(text)
    fence = "`" * (max(map(len, re.findall(r"`+", text)), default=0) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def _fenced(text: str) -> list[str]:
    fence = "`" * max(3, max(map(len, re.findall(r"`+", text)), default=0) + 1)
    return [f"{fence}python", *text.splitlines(), fence]
