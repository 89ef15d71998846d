"""`whet audit SCRIPT --measure -- ARGS`: what the fixes are worth. Apart, since it needs torch."""

import shlex
import sys
import tempfile
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from whet.auditor.collect import SourceFile
from whet.auditor.finding import Finding
from whet.auditor.formats.wording import peak
from whet.auditor.report import Impact as ReportedImpact
from whet.auditor.report import Phase, Report, Step
from whet.auditor.run import Change, Outcome, run
from whet.auditor.settings import Settings
from whet.fix_trials import Impact, Stage, measure_impact
from whet.fix_trials.plan import as_measured, middle_runs, script_at
from whet.fix_trials.sources import script_files
from whet.measure.quiet import WAIT_S, OnBusy, Patience

_LIMIT_S = 180.0  # for a single process


@dataclass(frozen=True)
class MeasuredAudit:
    """The sources before and after the fixes that were kept, and what was measured."""

    before: tuple[SourceFile, ...]
    impact: Impact
    reported: ReportedImpact

    @classmethod
    def of(cls, files: tuple[SourceFile, ...], impact: Impact, command: str) -> "MeasuredAudit":
        """With the impact as a report carries it."""
        return cls(files, impact, _reported(impact, command))

    def outcome(self, settings: Settings, *, write: bool) -> Outcome:
        """The audit of all the script's files, as they were. write: with the fixes that were kept as its changes."""
        outcome = run([Path(file.path) for file in self.before], settings)
        pairs = zip(self.before, self.impact.files, strict=True)
        changes = tuple(Change(before, after.text) for before, after in pairs if before.text != after.text)
        return replace(outcome, changes=changes if write else ())

    def added_to(self, report: Report) -> Report:
        """The report with what was measured in its findings."""
        by_code = {stage.code: stage.measured for stage in self.impact.stages}
        findings = tuple(replace(finding, measured=by_code.get(finding.code)) for finding in report.findings)
        return replace(report, findings=findings, impact=self.reported)

    def table(self) -> str:
        """For the terminal."""
        return table(self)


def measure(
    script: Path,
    arguments: Sequence[str],
    look: Callable[[Sequence[SourceFile]], Sequence[Finding]],
    *,
    num_steps: int,
    budget_s: float,
    on_busy: str = OnBusy.WAIT,
    busy_wait_s: float = WAIT_S,
) -> MeasuredAudit:
    """Try every fix of the script and of its own modules, telling on stderr how it goes."""
    patience = Patience(OnBusy.checked(on_busy), busy_wait_s, report=lambda text: _tell(text) if text else None)
    patience.begin()
    files = script_files(script)
    with tempfile.TemporaryDirectory(prefix="whet-impact-") as directory:
        place = script_at(script, arguments, Path(directory), num_steps=num_steps, limit_s=_LIMIT_S)
        impact = measure_impact(place, files, look, budget_s=budget_s, report=_tell, patience=patience)
    command = shlex.join(["whet", "audit", str(script), "--measure", "--", *arguments])
    return MeasuredAudit.of(tuple(files), impact, command)


def table(measured: MeasuredAudit) -> str:
    """For the terminal, within 80 columns: each fix, the phases of a step, the whole."""
    impact = measured.impact
    lines = ["", f"{'fix':<42} {'faster':>7}  {'95%':<13} kept"]
    for stage in impact.stages:
        lines += _rows(stage)
    if measured.reported.phases:
        lines += ["", f"{'phase of a step':<20} {'before':>10} {'after':>10}   ms"]
        for phase in measured.reported.phases:
            after = "" if phase.after_ms is None else f"{phase.after_ms:.3g}"
            lines.append(f"{phase.name:<20} {phase.before_ms:>10.3g} {after:>10}")
    lines.append("")
    if impact.busy:
        lines += textwrap.wrap(f"No verdict on some fixes: {impact.busy}.", 80)
    if impact.total is None or impact.total.ratio is None:
        word = "No fix is proved to pay" if impact.busy else "No fix paid"
        lines.append(f"{word} on this machine: a step takes {impact.first.latency_ms:.3g} ms, as before.")
    else:
        total = as_measured(impact.total, "")
        lines.append(
            f"All kept fixes: {total.ratio:.2f}x faster a step ({total.low:.2f} to {total.high:.2f}), "
            f"{impact.total.num_pairs} pairs of processes{'' if impact.total.is_gain else ', which proves nothing'}."
        )
        lines.append(f"{total.loss_note[:1].upper()}{total.loss_note[1:]}.")
        lines.append(peak(total))
    if impact.unfixed:
        lines.append(f"Found, and left to you (no automatic fix): {', '.join(impact.unfixed)}.")
    return "\n".join(lines)


def _rows(stage: Stage) -> list[str]:
    label = f"{stage.code} {stage.name}"[:42]
    if stage.claim is None or stage.claim.ratio is None or stage.claim.ci95 is None:
        return [f"{label:<42} {'-':>7}  {'':<13} no: {stage.status}", f"    {stage.why}"]
    low, high = stage.claim.ci95
    kept = "yes" if stage.is_kept else f"no: {stage.status}"
    rows = [f"{label:<42} {stage.claim.ratio:>6.2f}x  {f'{low:.2f} to {high:.2f}':<13} {kept}"]
    return rows if stage.is_kept or not stage.why else [*rows, f"    {stage.why}"]


def _reported(impact: Impact, command: str) -> ReportedImpact:
    steps = tuple(
        Step(
            f"{stage.code} {stage.name}: {'; '.join(stage.titles)}",
            stage.measured,
            stage.is_kept,
            "" if stage.is_kept else f"{stage.status}{f' ({stage.why})' if stage.why else ''}",
        )
        for stage in impact.stages
    )
    total = None
    before, after = impact.first.details["report"], None
    if impact.total is not None and impact.total.ratio is not None:
        total = as_measured(impact.total, str(impact.total.verdict))
        before, after = (run.details["report"] for run in middle_runs(impact.total))
    method = (
        f"Processes in turn (AB BA ...), each of at most {impact.num_steps} optimiser steps, the first three not "
        "counted; a process counts as the median of its steps. Each fix was tried on top of those kept before it."
    )
    return ReportedImpact(command, steps, total, _phases(before, after), method)


def _phases(before: Mapping[str, Any], after: Mapping[str, Any] | None) -> tuple[Phase, ...]:
    """Those that were seen in either, and the step as a whole."""
    late = {phase["name"]: phase["ms"] for phase in after["phases"]} if after is not None else {}
    found = []
    for phase in before["phases"]:
        then = late.get(phase["name"])
        if phase["ms"] is not None or then is not None:
            found.append(Phase(phase["name"], phase["ms"] or 0.0, (then or 0.0) if after is not None else None))
    if before["step_ms"] is not None:
        found.append(Phase("step", before["step_ms"], after["step_ms"] if after is not None else None))
    return tuple(found)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
