"""The ten findings that cost most, five lines each, so that they fit on a screen or two; then how many are left."""

from __future__ import annotations

from collections.abc import Iterator

from whet_audit.finding import SURENESS, Finding
from whet_audit.formats import wording
from whet_audit.report import Report, count

_SHOWN = 10
_WORTH = 0.02  # of the program's time; of 24 findings below it, judged one by one, one was worth doing


def render(report: Report, *, colour: bool = False, columns: int = 80) -> str:
    """Return the first findings, one for each cause, then the summary. columns: the width of the text."""
    causes = _causes(report)[:_SHOWN]
    lines = []
    for place, findings in enumerate(causes, 1):
        head, *rest = (_cut(line, columns) for line in _block(report, place, *findings))
        lines += [f"\x1b[1m{head}\x1b[0m" if colour else head, *rest]
    num_left = len(report.findings) - sum(map(len, causes))
    if num_left:
        lines.append(f"{count(num_left, 'finding')} more, which cost less: --all shows them")
    return "\n".join([*lines, *([""] if lines else []), report.summary()])


def _causes(report: Report) -> list[list[Finding]]:
    """Group the findings by their causes, without those that cost too little to matter."""
    found: dict[int, list[Finding]] = {}
    for finding in report.findings:
        if finding.cost >= _WORTH:
            found.setdefault(finding.cause, []).append(finding)
    return list(found.values())


def _block(report: Report, place: int, first: Finding, *others: Finding) -> Iterator[str]:
    hot = first.hot
    files = {one.path for one in (first, *others)}
    where = f"{len(files)} files" if len(files) > 1 else "this file"
    again = f", and {count(len(others), 'more place')} in {where}" if others else ""
    sure = SURENESS[first.confidence]
    yield f"{place:>2}. {wording.place(first)}: {first.code} {first.name} [{first.priority}, {sure}]"
    yield f"    {first.message}{again}"
    if hot is not None:
        yield f"    often: {hot.often}" + (f"; assumes {hot.assumes}" if hot.assumes else "")
    cost = f"{wording.gain(first.gain)}: {first.gain.assumption}"
    yield f"    cost:  {wording.measured(first.measured) if first.measured else cost}"
    yield f"    do:    {wording.remedy(first, report.cards.get(first.code))}"


def _cut(line: str, columns: int) -> str:
    plain = wording.one_line(line)
    if wording.width(plain) <= columns:
        return plain
    while wording.width(plain) > columns - 1:
        plain = plain[:-1]
    return f"{plain}…"
