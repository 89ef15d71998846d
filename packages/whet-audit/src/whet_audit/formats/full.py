"""A paragraph a finding, for people: what, the line of source, the loop, the gain, the fix; as wide as the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator

from whet_audit.card import Card
from whet_audit.collect import SourceFile
from whet_audit.finding import SURENESS, Finding, Priority
from whet_audit.formats import wording
from whet_audit.report import Report

_TAB = 4
_LABEL = 6  # columns of "gain: "
_MOST_AFTER = 2  # lines of source after the first, where a place spans several
_BOLD, _DIM, _BLUE = "1", "2", "1;34"
_COLOURS = {Priority.HIGH: "1;31", Priority.MEDIUM: "1;33", Priority.LOW: "1;36"}

_Paint = Callable[[str, str], str]


def render(report: Report, *, colour: bool = False, columns: int = 80) -> str:
    """Return all findings, then the summary. columns: the width of the text."""
    paint = _painted if colour else _plain
    blocks = [
        "\n".join(_block(one, report.sources.get(one.path), report.cards.get(one.code), paint, columns))
        for one in report.findings
    ]
    return "\n\n".join([*blocks, report.summary()])


def _plain(text: str, style: str) -> str:
    return text


def _painted(text: str, style: str) -> str:
    return f"\x1b[{style}m{text}\x1b[0m"


def _block(
    finding: Finding, source: SourceFile | None, card: Card | None, paint: _Paint, columns: int
) -> Iterator[str]:
    style = _COLOURS[finding.priority]
    sure = SURENESS[finding.confidence]
    place = paint(wording.one_line(wording.place(finding)), _BOLD)
    yield f"{place}: {paint(finding.code, style)} {finding.name} {paint(f'[{finding.priority}, {sure}]', _DIM)}"
    yield from _wrapped(finding.message, "  ", columns)
    after = min(finding.span.end_line, finding.span.line + _MOST_AFTER)
    gutter = len(str(after)) + 3
    bar = paint(f"{'':{gutter}}|", _BLUE)
    if source is not None:
        yield bar
        yield from _excerpt(finding, source, after, gutter, paint, columns)
        yield bar
    mark = f"{'':{gutter}}{paint('=', _BLUE)} "
    for name, text in _facts(finding, card):
        label = f"{name}:"
        first, *rest = _wrapped(text, " " * _LABEL, columns - gutter - 2)
        yield f"{mark}{paint(f'{label:<{_LABEL}}', _BOLD)}{first.strip()}"
        yield from (f"{'':{gutter + 2}}{line}" for line in rest)


def _facts(finding: Finding, card: Card | None) -> Iterator[tuple[str, str]]:
    if finding.hot is not None:
        yield "loop", finding.hot.text if finding.hot.guard else f"{finding.hot.text}; {finding.hot.often}"
    known = f"measured {wording.measured(finding.measured)}" if finding.measured else "not measured"
    yield "gain", f"{wording.gain(finding.gain)}, {known}; assumes: {finding.gain.assumption}"
    yield "do", wording.remedy(finding, card)


def _excerpt(
    finding: Finding, source: SourceFile, last: int, gutter: int, paint: _Paint, columns: int
) -> Iterator[str]:
    """The line above, the line with carets under the place, and the next ones where the place goes on."""
    span, cell = finding.span, finding.cell
    room = columns - gutter - 2
    bar = paint(f"{'':{gutter}}|", _BLUE)
    for number in range(max(1, span.line - 1), last + 1):
        line = source.line(number, cell)
        start, end = 0, 0
        if number == span.line:
            start = span.column
            end = span.end_column if span.end_line == span.line else len(line.rstrip())
        elif number < span.line and not line.strip():
            continue
        text, first, num_carets = _fitted(line.rstrip(), start, max(start, end), room)
        yield f"{paint(f'{number:>{gutter - 1}} |', _BLUE)} {text}".rstrip()
        if number == span.line:
            carets = paint("^" * max(1, num_carets), _COLOURS[finding.priority])
            yield f"{bar} {'':{first}}{carets}"


def _fitted(line: str, start: int, end: int, room: int) -> tuple[str, int, int]:
    """A line without tabs and control characters, cut to the room; where start..end begins in it, and its columns."""
    pieces: list[str] = []
    columns = [0]
    for character in line:
        piece = " " * (_TAB - columns[-1] % _TAB) if character == "\t" else wording.one_line(character)
        pieces.append(piece)
        columns.append(columns[-1] + wording.width(piece))
    start, end = min(start, len(pieces)), min(end, len(pieces))
    left, right = 0, len(pieces)
    if columns[-1] > room:
        if columns[end] > room - 1:  # keep what leads to the place, as far as there is room
            wanted = max(0, min(columns[start] - room // 4, columns[-1] - room + 1))
            left = next(index for index, column in enumerate(columns) if column >= wanted)
        while columns[right] - columns[left] > room - 2:
            right -= 1
    text = ("…" if left else "") + "".join(pieces[left:right]) + ("…" if right < len(pieces) else "")
    shift = columns[left] - (1 if left else 0)
    return text, columns[start] - shift, columns[min(end, right)] - columns[start]


def _wrapped(text: str, indent: str, columns: int) -> list[str]:
    plain = " ".join(wording.one_line(text).split())
    return textwrap.wrap(
        plain, columns, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    ) or [indent]  # fmt: skip
