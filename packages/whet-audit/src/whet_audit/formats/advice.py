"""What the reports say beyond the findings: what to do first, how to use the machine's memory, how to check and undo.

Only what follows from the findings, from measured results and from arithmetic on the machine's facts is said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from whet_audit.finding import Finding, Priority
from whet_audit.formats import wording
from whet_audit.report import MachineFacts, Report, count

_ARCHITECTURE = ("CMP", "DST")  # families whose findings without a fix change how the model or the job is built
_TRAINING_BYTES = 16  # a parameter in float32 with Adam: weight 4, gradient 4, two moments 8
_USABLE = 0.9  # of the memory: the rest is for fragments and for what other libraries hold
_MOST_NAMED = 3


@dataclass(frozen=True)
class Horizon:
    """Findings that take about as long to deal with."""

    title: str
    about: str
    findings: tuple[Finding, ...]


def verdict(report: Report) -> str:
    """The whole audit in one sentence."""
    total = report.impact.total if report.impact else None
    if total is not None:
        kept = sum(trial.is_kept for trial in report.impact.trials) if report.impact else 0
        return f"{total.ratio:.2f}× faster a step with {count(kept, 'fix') if kept == 1 else f'{kept} fixes'}, measured"
    if not report.findings:
        return f"Nothing found in {count(report.num_files, 'file')}"
    high = len(report.of(Priority.HIGH))
    urgent = f"{high} of them of high priority" if high else "none of high priority"
    return f"{count(len(report.findings), 'finding')} in {count(report.num_files, 'file')}, {urgent}"


def summary(report: Report) -> Iterator[str]:
    """What someone reads who reads nothing else."""
    counts = ", ".join(f"{len(report.of(p))} of {p} priority" for p in Priority if report.of(p))
    read = f"{count(report.num_files, 'file')}, {count(report.num_lines, 'line')}"
    yield f"Audited: {read}. Found: {counts or 'nothing'}."
    safe, unsafe = len(report.fixable(is_safe=True)), len(report.fixable(is_safe=False))
    if report.num_fixed:
        yield f"{count(report.num_fixed, 'finding')} fixed in this run; what follows is left."
    if safe or unsafe:
        yield (
            f"whet repairs {safe + unsafe} of them: {safe} safely (--fix: the program computes the same numbers), "
            f"{unsafe} where results may differ (--unsafe-fixes)."
        )
    often = Counter((f.code, f.name) for f in report.findings).most_common(_MOST_NAMED)
    if often:
        named = ", ".join(f"{code} {name} ({times}×)" for (code, name), times in often)
        yield f"Most often: {named}."
    total = report.impact.total if report.impact else None
    if total is not None:
        yield f"Measured on this machine, all kept fixes together: {wording.measured(total)}."
    elif report.findings:
        yield "Nothing was measured: gains are estimates with their assumptions, and they do not add up."
    if report.problems:
        yield f"{count(len({p.path for p in report.problems}), 'file')} could not be read; see the end."


def horizons(report: Report) -> list[Horizon]:
    """The findings by what they take to deal with; those without any are left out."""
    quick, medium, deep = list[Finding](), list[Finding](), list[Finding]()
    for finding in sorted(report.findings, key=lambda finding: list(Priority).index(finding.priority)):
        is_deep = finding.code.startswith(_ARCHITECTURE)
        (quick if finding.fix is not None else deep if is_deep else medium).append(finding)
    made = [
        Horizon("Quick wins", "a fix is at hand; minutes each", tuple(quick)),
        Horizon("Medium-term", "a change by hand in one place; hours each", tuple(medium)),
        Horizon("Architecture", "how the model or the job is built; days, and to be measured first", tuple(deep)),
    ]
    return [horizon for horizon in made if horizon.findings]


def by_rule(findings: tuple[Finding, ...]) -> list[tuple[str, str, list[Finding]]]:
    """Findings grouped by code and name, in order of their first."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.code, finding.name), []).append(finding)
    return [(code, name, group) for (code, name), group in groups.items()]


def strategy(report: Report) -> Iterator[str]:
    """How to choose the batch and use the memory of the machine at hand."""
    machine = report.machine
    if machine is None:
        yield "The machine is not known: make the report on the one that trains."
        return
    yield f"This machine: {_machine(machine)}."
    memory = machine.gpu_memory_bytes if machine.gpu_name else machine.memory_bytes
    if memory:
        usable = _USABLE * memory
        yield (
            f"Parameters: in float32 with Adam each takes {_TRAINING_BYTES} bytes before any activation (weight 4, "
            f"gradient 4, moments 8), so that {_size(usable)} ({_USABLE:.0%} of {_size(memory)}) hold at most "
            f"{usable / _TRAINING_BYTES / 1e9:.2g} billion trained parameters; a frozen one takes 4, or 2 in bfloat16."
        )
        yield (
            "Batch: run a few steps at two batch sizes and note both peaks. Memory per sample is the difference of the "
            "peaks over the difference of the sizes, what is fixed is the rest; the largest batch is "
            f"({_size(usable)} − fixed) / per sample. Take the smallest batch from which time per sample no longer "
            "falls."
        )
    yield (
        "If the batch that training needs does not fit: accumulate gradients over micro-batches (the loss divided by "
        "their number), then checkpoint activations (about a third more arithmetic), then group samples by length."
    )
    yield _loading(machine)
    related = sorted({f"{f.code} {f.name}" for f in report.findings if _is_about_memory(f)})
    if related:
        yield f"Findings that bear on it: {', '.join(related)}."


def validation(report: Report) -> Iterator[str]:
    """How to make sure that a fix pays and spoils nothing."""
    yield f"See what would change: {report.command} --fix --diff."
    measuring = f"whet audit {report.arguments} --measure -- ARGS"
    yield f"Measure each fix in a copy, in interleaved pairs with the original: {measuring}."
    yield (
        "Same seed, same data, same number of samples: after safe fixes the losses agree to rounding; after unsafe "
        "ones compare the curve over enough steps to see a difference of 1%, and the final metric."
    )
    yield "Compare the peak memory as well, and run the project's own tests."


def rollback(report: Report) -> Iterator[str]:
    """How to go back."""
    yield "Commit before fixing, and each kept fix on its own: git revert then takes back one without the others."
    yield "Before a commit, git restore -- FILE puts a file back. Every file is written whole or not at all."
    unsafe = report.fixable(is_safe=False)
    if unsafe:
        codes = ", ".join(sorted({finding.code for finding in unsafe}))
        yield f"Fixes that may change results ({codes}) are only applied with --unsafe-fixes; keep these apart."
    yield (
        "To accept a finding: # noqa: CODE on its line, or all that are there now with --write-baseline FILE, so that "
        "only new ones fail."
    )


def _machine(machine: MachineFacts) -> str:
    parts = [count(machine.cores, "core")]
    if machine.memory_bytes:
        parts.append(f"{_size(machine.memory_bytes)} of memory")
    if machine.gpu_name:
        gpus = f"{machine.num_gpus} × " if machine.num_gpus > 1 else ""
        each = f" with {_size(machine.gpu_memory_bytes)}" if machine.gpu_memory_bytes else ""
        parts.append(f"{gpus}{machine.gpu_name}{each}{' each' if gpus and each else ''}")
    else:
        parts.append("no GPU")
    return ", ".join(parts)


def _loading(machine: MachineFacts) -> str:
    workers = max(1, (machine.cores - 1) // max(1, machine.num_gpus))
    each = " for each GPU" if machine.num_gpus > 1 else ""
    text = f"Loading: start from {count(workers, 'worker')}{each}, kept between epochs; more while steps wait for data."
    if not machine.gpu_name:
        return f"{text} Workers compete with the model for cores here; pinned memory and non_blocking bring nothing."
    return f"{text} Pin the loader's memory and copy with non_blocking=True."


def _is_about_memory(finding: Finding) -> bool:
    return finding.code.startswith("MEM") or "batch" in finding.name or "checkpoint" in finding.name


def _size(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.3g} GB"
