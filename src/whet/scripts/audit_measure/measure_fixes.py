"""Run a training script with each of its fixes, in a copy, and keep those that pay: whet.measure_fixes."""

import os
import shlex
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from whet.errors import OptionError
from whet.measure.quiet import WAIT_S, OnBusy, QuietWait
from whet.scripts.audit_measure.plan import measure_impact, script_at
from whet.scripts.audit_measure.sources import script_files
from whet.scripts.auditing import PROGRAM, errors_of_whet
from whet_audit.audit import settings_of, written
from whet_audit.collect import SourceFile
from whet_audit.report import Impact, Report
from whet_audit.run import Change, Outcome, look, run

NUM_STEPS = 12
BUDGET_S = 600.0
_LEAST_STEPS = 6
_LIMIT_S = 180.0  # for a single process


def measure_fixes(
    script: str | os.PathLike[str],
    arguments: Sequence[str] = (),
    *,
    num_steps: int = NUM_STEPS,
    budget_s: float = BUDGET_S,
    select: Iterable[str] | None = None,
    ignore: Iterable[str] = (),
    exclude: Iterable[str] = (),
    preview: bool = False,
    min_priority: str | None = None,
    min_confidence: str | None = None,
    fix: bool = False,
    write: bool = True,
    on_busy: str = OnBusy.WAIT,
    busy_wait_s: float = WAIT_S,
    patience: QuietWait | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Audit a training script with its own modules, and measure what each fix is worth on this machine.

    Processes of the script as it is and of a copy with a fix take turns. A fix is kept where it pays at the same loss.

    Args:
        script: The script; it is run, in a copy.
        arguments: Of the script.
        num_steps: Optimiser steps of each process; the first three are not counted.
        budget_s: Seconds for everything but waiting.
        select: Codes or their beginnings; all, if not given.
        ignore: Codes or their beginnings to leave out.
        exclude: Patterns of paths of which nothing is fixed, as in .gitignore.
        preview: Try the fixes of rules in preview too.
        min_priority: The least priority of findings to fix: "low" (the default), "medium" or "high".
        min_confidence: How sure a finding has to be: "perhaps", "likely" (the default) or "sure".
        fix: Whether the kept fixes are the changes of the outcome.
        write: Write these changes into the script's own files.
        on_busy: What to do where other processes disturb: "wait", "inconclusive" or "go-on".
        busy_wait_s: Seconds to wait in all.
        patience: In place of the two above, where the caller shows the waiting.
        report: Is told how it goes, line by line.

    Returns:
        The audit of the script and its modules as they were. Its report's `impact` has what was measured.

    Raises:
        OptionError: There are too few steps.
        TargetError: The script as it is cannot be run.
        AuditError: The settings or a code cannot be used.
    """
    if num_steps < _LEAST_STEPS:
        raise OptionError(
            f"--steps {num_steps} are too few: the first three are not counted; give {_LEAST_STEPS} or more"
        )
    path = Path(script)
    with errors_of_whet():
        settings = settings_of(
            *([path], select, ignore),
            exclude=exclude,
            preview=preview,
            min_priority=min_priority,
            min_confidence=min_confidence,
        )
    patience = patience or QuietWait(OnBusy.checked(on_busy), busy_wait_s)
    patience.begin()
    before = [file for file in script_files(path) if not settings.is_excluded(Path(file.path).absolute())]
    with tempfile.TemporaryDirectory(prefix="whet-impact-") as directory:
        place = script_at(path, arguments, Path(directory), num_steps=num_steps, limit_s=_LIMIT_S)
        impact, after = measure_impact(
            *(place, before, lambda files: list(filter(settings.shows, look(files, settings)[0]))),
            budget_s=budget_s,
            report=report,
            patience=patience,
        )
    outcome = run([Path(file.path) for file in before], settings)
    changes = _changes(before, after) if fix else ()
    audited = shlex.join([str(path), *(["--preview"] if preview else [])])
    outcome = replace(outcome, report=_with_impact(outcome.report, impact, audited), changes=changes)
    return written(outcome) if fix and write else outcome


def _with_impact(report: Report, impact: Impact, arguments: str) -> Report:
    """Return a report with what was measured, each finding with the evidence of its fix."""
    by_code = {trial.code: trial.evidence for trial in impact.trials}
    findings = tuple(replace(finding, measured=by_code.get(finding.code)) for finding in report.findings)
    return replace(report, findings=findings, impact=impact, program=PROGRAM, arguments=arguments)


def _changes(before: Sequence[SourceFile], after: Sequence[SourceFile]) -> tuple[Change, ...]:
    return tuple(Change(old, new.text) for old, new in zip(before, after, strict=True) if old.text != new.text)
