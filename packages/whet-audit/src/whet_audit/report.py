"""What an audit found, complete, for every output format to show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from whet_audit.card import Card
from whet_audit.collect import Problem, SourceFile
from whet_audit.finding import Finding, Measured, Priority

_pages: list[Callable[[Report], str]] = []


def show_reports(page: Callable[[Report], str]) -> None:
    """Have notebooks show reports by a function, which knows them; they know none."""
    _pages[:] = [page]


@dataclass(frozen=True)
class MachineFacts:
    """The machine that the report's advice is for. memory_bytes, gpu_memory_bytes: all there is, 0 where not known."""

    cores: int
    memory_bytes: int = 0
    gpu_name: str = ""
    gpu_memory_bytes: int = 0
    num_gpus: int = 0


@dataclass(frozen=True)
class FixTrial:
    """All fixes of one rule, tried on top of what was kept before.

    Attributes:
        num_findings: Findings of the rule that have a fix.
        titles: What the fixes do, in words.
        is_safe: Whether the program computes the same with them.
        status: "kept", "no gain", "another loss", "failed", "not measured", "not applied" or "not tried".
        measured: What the processes gave; None where they could not be run.
        why: Why the fixes were not kept, where the status does not say it all.
    """

    code: str
    name: str
    num_findings: int
    titles: tuple[str, ...]
    is_safe: bool
    status: str
    measured: Measured | None = None
    why: str = ""

    @property
    def is_kept(self) -> bool:
        """Whether the fixes pay, at the same loss."""
        return self.status == "kept"

    @property
    def evidence(self) -> Measured | None:
        """What was measured, where that can be believed: not of runs that failed or were disturbed."""
        return None if self.status in ("failed", "not measured") else self.measured

    @property
    def label(self) -> str:
        """The rule and what its fixes do."""
        return f"{self.code} {self.name}: {'; '.join(self.titles)}"

    @property
    def reason(self) -> str:
        """Why the fixes were not kept; "" where they were."""
        return "" if self.is_kept else f"{self.status}{f' ({self.why})' if self.why else ''}"


@dataclass(frozen=True)
class Phase:
    """A part of the training step and its time, in milliseconds a step."""

    name: str
    before_ms: float
    after_ms: float | None = None


@dataclass(frozen=True)
class Impact:
    """What the fixes of a training script are worth on this machine.

    Attributes:
        command: The command that measures it again.
        trials: The fixes of each rule, in the order in which they were tried.
        before_ms: A step of the script as it is, in milliseconds.
        total: All kept fixes against the script as it is; None without any. Its verdict is "pass" where they pay.
        phases: Of a step, before and after.
        num_steps: Optimiser steps of each process.
        seconds: Wall time.
        unfixed: Codes that were found and have no fix to try.
        busy: Why something could not be judged, on a busy machine.
    """

    command: str
    trials: tuple[FixTrial, ...] = ()
    before_ms: float = 0.0
    total: Measured | None = None
    phases: tuple[Phase, ...] = ()
    num_steps: int = 0
    seconds: float = 0.0
    unfixed: tuple[str, ...] = ()
    busy: str = ""

    @property
    def method(self) -> str:
        """How it was measured, in sentences."""
        return (
            f"Processes in turn (AB BA ...), each of at most {self.num_steps} optimiser steps, the first three not "
            "counted; a process counts as the median of its steps. Each fix was tried on top of those kept before it."
        )


@dataclass(frozen=True)
class Report:
    """All of an audit.

    findings: those to show, in order; in notebooks, lines are those of their cell. sources: by path, for the lines
    around a finding. problems: what could not be audited. num_known, num_gone: of the baseline. num_fixed: by --fix.
    num_unsure: findings that are less sure than asked for. num_left_out: files of tests and examples. program,
    arguments: the command that audits the same again.
    """

    findings: tuple[Finding, ...]
    sources: Mapping[str, SourceFile] = field(default_factory=dict)
    cards: Mapping[str, Card] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    num_files: int = 0
    num_lines: int = 0
    num_fixed: int = 0
    num_known: int = 0
    num_gone: int = 0
    num_unsure: int = 0
    num_left_out: int = 0
    machine: MachineFacts | None = None
    impact: Impact | None = None
    program: str = "whet-audit"
    arguments: str = ""

    def _repr_html_(self) -> str | None:
        return _pages[0](self) if _pages else None

    @property
    def command(self) -> str:
        """The command that audits the same again."""
        return f"{self.program} {self.arguments}".rstrip()

    def of(self, priority: Priority) -> list[Finding]:
        """The findings of a priority."""
        return [finding for finding in self.findings if finding.priority is priority]

    def fixable(self, *, is_safe: bool) -> list[Finding]:
        """Those that --fix repairs, or those that need --unsafe-fixes. Notebooks are left to their owner."""
        return [f for f in self.findings if f.fix is not None and f.fix.is_safe is is_safe and f.cell is None]

    def summary(self) -> str:
        """What there is, in a line or two."""
        counts = ", ".join(f"{len(self.of(p))} {p}" for p in Priority if self.of(p))
        num = len(self.findings)
        lines = [f"{count(num, 'finding')} ({counts})" if num else "No findings"]
        lines[0] += f" in {count(self.num_files, 'file')}"
        if self.num_fixed:
            lines[0] += f"; {count(self.num_fixed, 'finding')} fixed"
        if not self.num_files and not self.problems and not self.num_left_out:
            lines[0] = "No findings: there is no Python file or notebook to audit; check the paths and `exclude`"
        if self.problems:
            unread = len({problem.path for problem in self.problems})
            lines[0] += f"; {count(unread, 'file')} not read"
        safe, unsafe = len(self.fixable(is_safe=True)), len(self.fixable(is_safe=False))
        if safe:
            lines.append(f"{safe} can be fixed with --fix" + (f", {unsafe} more with --unsafe-fixes" if unsafe else ""))
        elif unsafe:
            lines.append(f"{unsafe} can be fixed with --fix --unsafe-fixes")
        if any(finding.cell is not None and finding.fix is not None for finding in self.findings):
            lines.append("notebooks are not fixed automatically")
        if self.num_unsure:
            lines.append(f"{count(self.num_unsure, 'finding')} more, less sure: --all shows them")
        if self.num_left_out:
            files = count(self.num_left_out, "file")
            lines.append(f"{files} of tests and examples left out: name them to have them audited")
        if self.num_known or self.num_gone:
            gone = f", {self.num_gone} gone since: write it anew" if self.num_gone else ""
            lines.append(f"baseline: {self.num_known} known{gone}")
        return "\n".join(lines)


def count(number: int, noun: str) -> str:
    """ "1 finding", "2 findings"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
