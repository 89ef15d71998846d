"""The report as one page that opens offline: no script, nothing from outside, everything put into it escaped."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from whet_audit import __version__
from whet_audit.finding import SURENESS, Finding, Priority
from whet_audit.formats import advice, wording
from whet_audit.report import Report, count

_HERE = Path(__file__).parent
_STYLES = ("tokens.css", "base.css", "report.css")  # the first two are whet's, as all its pages have them
_TAB = " " * 4
_AROUND = 2  # lines of source above and below a finding


@dataclass(frozen=True)
class Line:
    """A line of source, in three parts: before, at and after the place of a finding."""

    number: int
    before: str
    at: str
    after: str


def render(report: Report, *, colour: bool = False) -> str:
    """The page as text."""
    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "place": wording.place, "gain": wording.gain, "measured": wording.measured, "ratio": wording.ratio,
        "peak": wording.peak,
        "fix": wording.fix, "count": count,
        "sure": lambda confidence: SURENESS[confidence],
    }  # fmt: skip
    return environment.get_template("report.html.j2").render(
        r=report,
        version=__version__,
        css=Markup("\n".join((_HERE / name).read_text(encoding="utf-8") for name in _STYLES).strip()),
        verdict=advice.verdict(report),
        summary=list(advice.summary(report)),
        groups=[(p, advice.by_rule(tuple(report.of(p)))) for p in Priority if report.of(p)],
        priorities=[(p, len(report.of(p))) for p in Priority],
        num_safe=len(report.fixable(is_safe=True)),
        num_unsafe=len(report.fixable(is_safe=False)),
        horizons=[(horizon, advice.by_rule(horizon.findings)) for horizon in advice.horizons(report)],
        strategy=list(advice.strategy(report)),
        validation=list(advice.validation(report)),
        rollback=list(advice.rollback(report)),
        excerpt=lambda finding: _excerpt(report, finding),
        longest_ms=max((max(p.before_ms, p.after_ms or 0) for p in report.impact.phases), default=1.0)
        if report.impact
        else 1.0,
    ).strip()  # fmt: skip


def _excerpt(report: Report, finding: Finding) -> list[Line]:
    """The lines around a finding, without the indentation they share."""
    source = report.sources.get(finding.path)
    if source is None:
        return []
    span = finding.span
    numbers = range(max(1, span.line - _AROUND), span.line + _AROUND + 1)
    texts = {number: source.line(number, finding.cell) for number in numbers}
    spread = [text.replace("\t", _TAB) for text in texts.values()]
    shared = min((len(text) - len(text.lstrip()) for text in spread if text.strip()), default=0)
    made = []
    for number, text in texts.items():
        start, end = len(text), len(text)
        if number == span.line:
            start = span.column
            end = span.end_column if span.end_line == span.line else len(text.rstrip())
        cut = [wording.one_line(p.replace("\t", _TAB)) for p in (text[:start], text[start:end], text[end:])]
        made.append(Line(number, cut[0][shared:], *cut[1:]))
    while made and not (made[-1].before + made[-1].at).strip():
        made.pop()
    return made
