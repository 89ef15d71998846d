"""One audit from paths to report: read, look, leave out what is silenced or known, repair."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from whet_audit.baseline import Baseline, Matched, baseline_text
from whet_audit.card import Card, read_card
from whet_audit.collect import Problem, SourceFile, collect
from whet_audit.cost import sorted_by_cost
from whet_audit.engine import inspect_files
from whet_audit.files import write_whole
from whet_audit.finding import Finding, Fix, Priority, reaches
from whet_audit.noqa import without_silenced
from whet_audit.report import Report
from whet_audit.rules import RULES, is_preview
from whet_audit.settings import Settings

if TYPE_CHECKING:
    from whet_audit.fixing import Applied

_MOST_ROUNDS = 10  # a fix may uncover the next finding


@dataclass(frozen=True)
class Change:
    """A file that fixes change: as it was read, and its new text."""

    before: SourceFile
    text: str


@dataclass(frozen=True)
class Outcome:
    """The report, what fixes change, and all findings, with lines of `SourceFile.text`, those of a baseline among them.

    files: as they are after the fixes. failures: a line for each file that could not be written. fail_on: the least
    priority of findings that fail.
    """

    report: Report
    changes: tuple[Change, ...]
    findings: tuple[Finding, ...]
    files: tuple[SourceFile, ...]
    failures: tuple[str, ...] = ()
    fail_on: Priority = Priority.LOW

    def __repr__(self) -> str:
        return f"Outcome({self.report.summary()})"

    def _repr_html_(self) -> str | None:
        return self.report._repr_html_()

    def write_baseline(self, path: Path) -> None:
        """Write all findings, to be known from now on. Raises OutputError."""
        write_whole(path, baseline_text(self.findings, self.files, path.absolute().parent))


def run(
    paths: Iterable[Path],
    settings: Settings,
    *,
    baseline: Baseline | None = None,
    fix: bool = False,
    unsafe: bool = False,
) -> Outcome:
    """Audit what the paths name. fix: repair in memory what can be repaired; unsafe: also where figures may change.

    Nothing is written. Known findings are neither shown nor repaired.
    """
    collected = collect(paths, is_excluded=settings.is_excluded)
    files = list(collected.files)
    findings, problems = look(files, settings, collected.beside)
    known = _match(findings, files, settings, baseline)
    num_fixed, skipped = 0, list[str]()
    for _ in range(_MOST_ROUNDS if fix else 0):
        files, num, skipped = _repair(files, list(filter(settings.shows, known.new)), unsafe=unsafe)
        if not num:
            break
        num_fixed += num
        findings, problems = look(files, settings, collected.beside)
        known = _match(findings, files, settings, baseline)
    num_above = sum(reaches(finding.priority, settings.min_priority) for finding in known.new)
    shown = list(filter(settings.shows, known.new))
    sources = {file.path: file for file in files}
    unread = {problem.path for problem in problems}
    read = [file for file in files if file.path not in unread]
    report = Report(
        findings=tuple(in_cell(finding, sources) for finding in sorted_by_cost(shown)),
        sources=sources,
        cards=cards(),
        problems=tuple(sorted({*collected.problems, *problems}, key=lambda p: (p.path, p.line))),
        notes=(*collected.notes, *skipped),
        num_files=len(read),
        num_lines=sum(file.text.count("\n") for file in read),
        num_fixed=num_fixed,
        num_known=known.num_known,
        num_gone=known.num_gone,
        num_unsure=num_above - len(shown),
        num_left_out=collected.num_left_out,
    )
    changes = [
        Change(before, after.text)
        for before, after in zip(collected.files, files, strict=True)
        if before.text != after.text
    ]
    found = tuple(filter(settings.shows, findings))
    return Outcome(report, tuple(changes), found, tuple(files), fail_on=settings.fail_on)


def cards() -> dict[str, Card]:
    """The card of every rule, by code."""
    return {
        code: read_card(code, rule.NAME, rule.PRIORITY, rule.__doc__, is_preview=is_preview(rule))
        for code, rule in sorted(RULES.items())
    }


def in_cell(finding: Finding, sources: dict[str, SourceFile]) -> Finding:
    """A notebook's finding with its cell, and its lines as they are there; others stay."""
    source = sources.get(finding.path)
    if source is None or not source.cell_starts:
        return finding
    cell, line = source.place(finding.span.line)
    shift = finding.span.line - line
    hot = finding.hot
    if hot is not None and hot.loop_line and hot.loop_path == finding.path:
        loop_cell, loop_line = source.place(hot.loop_line)
        hot = replace(hot, loop_path=f"{hot.loop_path}:cell {loop_cell}", loop_line=loop_line)
    span = replace(finding.span, line=line, end_line=finding.span.end_line - shift)
    return replace(finding, span=span, cell=cell, hot=hot)


def look(
    files: Sequence[SourceFile], settings: Settings, beside: Sequence[SourceFile] = ()
) -> tuple[list[Finding], tuple[Problem, ...]]:
    """What is found in the files, of codes that are on and however sure it is, without what comments silence.

    beside: files that call the code of the others, or set its options; nothing is said of them.
    """
    found = inspect_files([*files, *beside], {code for code in RULES if settings.is_on(code)})
    paths = {file.path for file in files}
    wanted = [one for one in found.findings if one.path in paths and settings.is_on(one.code, one.path)]
    return without_silenced(wanted, files), tuple(problem for problem in found.problems if problem.path in paths)


def _match(
    findings: Sequence[Finding], files: Sequence[SourceFile], settings: Settings, baseline: Baseline | None
) -> Matched:
    if baseline is None:
        return Matched(tuple(findings), 0, 0)
    return baseline.match(findings, files, settings.is_on)


def _repair(
    files: Sequence[SourceFile], findings: Sequence[Finding], *, unsafe: bool
) -> tuple[list[SourceFile], int, list[str]]:
    """The files with their fixes, how many were applied, and in a line each why others were not."""
    wanted: dict[str, list[tuple[Finding, Fix]]] = {}
    for finding in findings:
        if finding.fix is not None and (finding.fix.is_safe or unsafe):
            wanted.setdefault(finding.path, []).append((finding, finding.fix))
    repaired, num_applied, skipped = [], 0, []
    for file in files:
        chosen = [] if file.cell_starts else wanted.get(file.path, [])
        if chosen:
            applied = _apply(file.text, [fix for _, fix in chosen])
            file = replace(file, text=applied.source)
            num_applied += len(applied.applied)
            why = {id(fix): reason for fix, reason in applied.skipped}
            skipped += [
                f"{file.path}:{finding.span.line}: {finding.code} not fixed: {why[id(fix)]}"
                for finding, fix in chosen
                if id(fix) in why
            ]
        repaired.append(file)
    return repaired, num_applied, skipped


def _apply(source: str, fixes: Sequence[Fix]) -> Applied:
    """Imported only here: libcst takes as long to import as everything else to start."""
    applied: Applied = import_module("whet_audit.fixing").apply_fixes(source, fixes)
    return applied
