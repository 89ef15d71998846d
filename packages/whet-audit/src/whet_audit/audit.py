"""whet-audit as a function: find what makes PyTorch code slow, say what it may cost, and fix it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from whet_audit.baseline import read_baseline
from whet_audit.errors import AuditError, OutputError
from whet_audit.files import check_file, write_whole
from whet_audit.formats.table import report_html
from whet_audit.report import show_reports
from whet_audit.rules import RULES, is_preview
from whet_audit.run import Change, Outcome, run
from whet_audit.settings import (
    CONFIDENCES,
    PRIORITIES,
    Settings,
    check_codes,
    check_level,
    check_patterns,
    read_settings,
)

show_reports(report_html)


def audit(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    select: Iterable[str] | None = None,
    ignore: Iterable[str] = (),
    exclude: Iterable[str] = (),
    preview: bool = False,
    min_priority: str | None = None,
    min_confidence: str | None = None,
    baseline: str | os.PathLike[str] | None = None,
    write_baseline: str | os.PathLike[str] | None = None,
    fix: bool = False,
    unsafe_fixes: bool = False,
    write: bool = True,
) -> Outcome:
    """Find what makes PyTorch code slow, and repair it where that is asked for. The code is read, never run.

    What pyproject.toml says under [tool.whet.audit] holds where no argument says otherwise.

    Args:
        paths: Python files, notebooks and directories.
        select: Codes or their beginnings, such as "SYN" or "MOV101"; all, if not given.
        ignore: Codes or their beginnings to leave out.
        exclude: Patterns of paths to leave out, as in .gitignore.
        preview: Run the rules in preview too; without, only those that `select` names by their full code.
        min_priority: The least priority to show: "low" (the default), "medium" or "high".
        min_confidence: How sure a finding has to be: "perhaps", "likely" (the default) or "sure".
        baseline: A file of findings that are known; only others are shown.
        write_baseline: Where to write what is found, to be known from now on.
        fix: Repair what can be repaired at the same results.
        unsafe_fixes: With `fix`, repair also where results may differ.
        write: Write the repaired files; False leaves them as they are, and the outcome has the changes.

    Returns:
        The report, what fixes change, and the files that could not be written.

    Raises:
        AuditError: The settings, a code or the baseline cannot be used.
        OutputError: The new baseline cannot be written.
    """
    if unsafe_fixes and not fix:
        raise AuditError("unsafe_fixes widens fix; give fix=True as well")
    named = [Path(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    check_file(None if write_baseline is None else Path(write_baseline))
    settings = settings_of(
        *(named, select, ignore),
        exclude=exclude,
        preview=preview,
        min_priority=min_priority,
        min_confidence=min_confidence,
    )
    known = settings.baseline if baseline is None else Path(baseline)
    if known is not None and write_baseline is not None and not known.exists():
        known = None  # about to be written for the first time
    outcome = run(
        named,
        settings,
        baseline=None if known is None else read_baseline(known),
        fix=fix,
        unsafe=unsafe_fixes,
    )
    arguments = " ".join([*(shlex.quote(str(path)) for path in named), *(["--preview"] if preview else [])])
    outcome = replace(outcome, report=replace(outcome.report, arguments=arguments))
    if fix and write:
        outcome = written(outcome)
    if write_baseline is not None:
        outcome.write_baseline(Path(write_baseline))
    return outcome


def settings_of(
    paths: Sequence[Path],
    select: Iterable[str] | None,
    ignore: Iterable[str],
    *,
    exclude: Iterable[str] = (),
    preview: bool = False,
    min_priority: str | None = None,
    min_confidence: str | None = None,
) -> Settings:
    """Return what pyproject.toml says of the paths, and what was chosen besides, which wins. Raises AuditError."""
    read = read_settings(paths, RULES)
    priority, confidence = read.min_priority, read.min_confidence
    if min_priority is not None:
        priority = check_level(min_priority, PRIORITIES, "--min-priority")
    if min_confidence is not None:
        confidence = check_level(min_confidence, CONFIDENCES, "--min-confidence")
    return replace(
        read,
        given_select=None if select is None else check_codes(select, RULES, "--select"),
        given_ignore=check_codes(ignore, RULES, "--ignore"),
        given_exclude=check_patterns(exclude, "--exclude"),
        preview=preview or read.preview,
        previews=frozenset(code for code, rule in RULES.items() if is_preview(rule)),
        min_priority=priority,
        min_confidence=confidence,
    )


def written(outcome: Outcome) -> Outcome:
    """Write the changes of an outcome. Returns it with a line for each file that could not be written."""
    failures = tuple(line for change in outcome.changes if (line := _write(change)) is not None)
    return replace(outcome, failures=failures)


def _write(change: Change) -> str | None:
    """Write a file whole or not at all, with its encoding and permissions; what is wrong where that cannot be done."""
    path = Path(change.before.path).resolve()  # through links: they stay
    encoding = change.before.encoding
    try:
        if path.read_bytes() != change.before.text.encode(encoding):
            return f"{change.before.path}: not fixed: it was changed meanwhile"
        if not os.access(path, os.W_OK):
            return f"{change.before.path}: not fixed: it may not be written"
        data = change.text.encode(encoding)
        mode = path.stat().st_mode
        write_whole(path, data)
        path.chmod(mode)
    except UnicodeError:
        return f"{change.before.path}: not fixed: its encoding, {encoding}, cannot hold the fix"
    except (OSError, OutputError) as error:
        return f"{change.before.path}: not fixed: {error}"
    return None
