"""The ten findings that cost most, five lines each, so that they fit on a screen or two; then how many more there are."""

from __future__ import annotations

from whet_audit.finding import Finding
from whet_audit.formats import wording
from whet_audit.report import Report, count

_SHOWN = 10


def render(report: Report, *, colour: bool = False, columns: int = 80) -> str:
    """Return the first findings, one for each cause, then the summary. columns: the width of the text."""
    causes = _causes(report)
    lines = [line for place, cause in enumerate(causes[:_SHOWN], 1) for line in _block(report, place, cause)]
    if colour:
        lines = [f"\x1b[1m{_cut(line, columns)}\x1b[0m" if not line.startswith("    ") else line for line in lines]
    lines = [line if "\x1b" in line else _cut(line, columns) for line in lines]
    num_left = sum(map(len, causes[_SHOWN:]))
    if num_left:
        lines.append(f"{count(num_left, 'finding')} more that should cost less: --all shows them")
    return "\n".join([*lines, *([""] if lines else []), report.summary()])


def _causes(report: Report) -> list[list[Finding]]:
    """Findings of one rule in one function belong together; the costliest comes first."""
    found: dict[object, list[Finding]] = {}
    for finding in report.findings:
        hot = finding.hot
        key = (finding.code, finding.path, hot.function) if hot is not None else finding
        found.setdefault(key, []).append(finding)
    return list(found.values())


def _block(report: Report, place: int, cause: list[Finding]) -> list[str]:
    first, *others = cause
    sure = wording.SURENESS[first.confidence]
    again = (
        f", and {count(len(others), 'more place')} in {first.hot.function or 'the module'}"
        if others and first.hot
        else ""
    )
    lines = [
        f"{place:>2}. {wording.place(first)}: {first.code} {first.name} [{first.priority}, {sure}]",
        f"    {first.message}{again}",
    ]
    if first.hot is not None:
        assumed = f" (assumes {first.hot.assumes})" if first.hot.assumes else ""
        lines.append(f"    often: {first.hot.often}{assumed}")
    size = (
        wording.measured(first.measured) if first.measured else f"{wording.gain(first.gain)}: {first.gain.assumption}"
    )
    lines.append(f"    cost:  {size}")
    lines.append(f"    do:    {_remedy(report, first)}")
    return lines


def _remedy(report: Report, finding: Finding) -> str:
    """The fix, or the first line of what the rule's card says to write instead."""
    if finding.fix is not None:
        return wording.fix(finding)
    card = report.cards.get(finding.code)
    instead = card.sections.get("Instead", "").strip() if card is not None else ""
    return " ".join(instead.split()) or f"see --explain {finding.code}"


def _cut(line: str, columns: int) -> str:
    """A line as wide as the text at most."""
    plain = wording.one_line(line)
    if wording.width(plain) <= columns:
        return plain
    while wording.width(plain) > columns - 1:
        plain = plain[:-1]
    return f"{plain}…"
