"""Find the fixes that pay on this machine: try each on top of those kept so far, the most promising first.

In the end all kept fixes together are compared with the original.
"""

import shlex
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from whet.comparison.claim import Claim, Verdict
from whet.comparison.compare import compare
from whet.comparison.run import Run
from whet.comparison.schedules import ABBA
from whet.comparison.stopping import Fixed, UntilClear
from whet.errors import TargetError
from whet.measure.isolate import Outcome, run_isolated
from whet.measure.quiet import QuietWait
from whet.scripts.audit_measure.child import run_script
from whet.scripts.audit_measure.version import ScriptVersion, middle
from whet.scripts.injection.overlay import make_overlay
from whet_audit.collect import SourceFile
from whet_audit.finding import Confidence, Finding, Measured
from whet_audit.fixing import apply_fixes
from whet_audit.hot_paths import INFERS
from whet_audit.report import FixTrial, Impact, Phase

Look = Callable[[Sequence[SourceFile]], Sequence[Finding]]

_SCREENING = UntilClear(most=6)
_PROOF = Fixed(most=6, spare=2, lost_after=0, noise_from="pairs")
_SURE = {Confidence.HIGH: 1.0, Confidence.MEDIUM: 0.7, Confidence.LOW: 0.4}
_SHARE_FOR_FINAL = 0.25  # of the budget


@dataclass(frozen=True)
class Script:
    """Describe a script, its arguments and what it runs in.

    Attributes:
        named: The path as the user gave it.
        path: The resolved path.
        base: The directory that is copied for each version.
        directory: The directory for copies and logs.
        num_steps: Optimiser steps of a run.
        limit_s: Seconds after which a run is ended.
    """

    named: Path
    path: Path
    arguments: tuple[str, ...]
    base: Path
    working_directory: Path
    directory: Path
    num_steps: int
    limit_s: float

    @property
    def command(self) -> str:
        """Return the command that measures the script."""
        return shlex.join(["whet", "audit", str(self.named), "--measure", "--", *self.arguments])

    def version(self, name: str, files: Sequence[SourceFile], originals: Sequence[SourceFile]) -> ScriptVersion:
        """Return a version of the sources, to be run in a copy of its own, in a fresh process each time."""
        known = {file.path: file.text for file in originals}
        changed: dict[Path, str | bytes] = {
            Path(file.path).resolve(): file.text.encode(file.encoding)
            for file in files
            if file.text != known.get(file.path)
        }
        copy = make_overlay(self.base, self.directory / name / "copy", changed)
        inside = self.working_directory.is_relative_to(self.base)
        arguments = {
            "script": str(copy / self.path.relative_to(self.base)),
            "arguments": list(self.arguments),
            "num_steps": self.num_steps,
            "limit_s": 0.9 * self.limit_s,
            "seed": 0,
        }

        def start() -> Outcome:
            return run_isolated(
                run_script,
                arguments,
                self.directory / name / "run",
                time_limit_s=self.limit_s,
                working_directory=copy / self.working_directory.relative_to(self.base) if inside else None,
            )

        return ScriptVersion(name, start)


def measure_impact(
    script: Script,
    files: Sequence[SourceFile],
    look: Look,
    *,
    budget_s: float,
    report: Callable[[str], None],
    patience: QuietWait | None = None,
) -> tuple[Impact, tuple[SourceFile, ...]]:
    """Try the fixes of what `look` finds. Return their impact, and `files` with those that pay at the same loss.

    On a busy machine `patience` says how long to wait. A fix that cannot be judged is not kept.

    Raises:
        TargetError: The unchanged script cannot be run.
    """
    patience = patience or QuietWait()
    started = time.monotonic()
    originals = list(files)
    as_is = script.version("original", originals, originals)
    first = _first_run(as_is, report, patience)
    current, trials, tried, unfixed = originals, list[FixTrial](), set[str](), list[str]()
    now = as_is
    while True:
        findings = [finding for finding in look(current) if is_in_training(finding)]
        unfixed = sorted({f.code for f in findings} - {f.code for f in findings if f.fix is not None})
        code = _next(findings, tried)
        if code is None:
            break
        tried.add(code)
        chosen = [finding for finding in findings if finding.code == code and finding.fix is not None]
        if patience.has_run_out:
            trials.append(_trial(chosen, "not measured", why=patience.sentence))
        elif time.monotonic() - patience.spent_s - started > budget_s * (1 - _SHARE_FOR_FINAL):
            trials.append(_trial(chosen, "not tried", why="the budget was used up"))
        else:
            trial, version, run = _try(script, len(trials), chosen, current, originals, now, report, patience)
            trials.append(trial)
            if trial.is_kept:
                current, now = version, run
    total = _total(as_is, now, report, patience) if any(trial.is_kept for trial in trials) else None
    trials += _in_inference(look(current), tried)
    seconds = time.monotonic() - started
    is_unknown = any(trial.status == "not measured" for trial in trials) or (total is not None and total.busy)
    has_ratio = total is not None and total.ratio is not None
    impact = Impact(
        command=script.command,
        trials=tuple(trials),
        before_ms=first.latency_ms,
        total=as_measured(total, str(total.verdict)) if total is not None and has_ratio else None,
        phases=_phases(first, None) if total is None or not has_ratio else _phases(*middle_runs(total)),
        num_steps=script.num_steps,
        seconds=seconds,
        unfixed=tuple(unfixed),
        busy=patience.sentence if is_unknown else "",
    )
    return impact, tuple(current)


def _first_run(as_is: ScriptVersion, report: Callable[[str], None], patience: QuietWait) -> Run:
    """Run the unchanged script once.

    Raises:
        TargetError: It cannot be run.
    """
    report("running the script as it is")
    first = patience.measure(as_is.run, lambda found: found.busy)
    if first.failure:
        raise TargetError(first.failure)
    report(f"{first.latency_ms:.4g} ms a step")
    return first


def _total(as_is: ScriptVersion, now: ScriptVersion, report: Callable[[str], None], patience: QuietWait) -> Claim:
    """Compare the script with all kept fixes to the unchanged script.

    Raises:
        TargetError: One of the two failed.
    """
    report("all that were kept, against the script as it is")
    total = compare(as_is, now, schedule=ABBA(), stop=_PROOF, patience=patience)
    if total.failure:
        raise TargetError(
            f"the script failed in the last comparison: {total.failure}; run it by itself, and mend what it raises"
        )
    return total


def _in_inference(findings: Sequence[Finding], tried: Collection[str]) -> list[FixTrial]:
    """Return the fixes that were not tried, since the measured steps do not run what they change."""
    others = [finding for finding in findings if not is_in_training(finding) and finding.fix is not None]
    why = "it lies in inference, which the measured steps do not run"
    codes = sorted({finding.code for finding in others}.difference(tried))
    return [_trial([f for f in others if f.code == code], "not tried", why=why) for code in codes]


def is_in_training(finding: Finding) -> bool:
    """Return whether training steps may run the code of a finding. Code outside loops, as a loader's setup, counts."""
    return finding.hot is None or finding.hot.kind not in INFERS


def as_measured(claim: Claim, verdict: str) -> Measured:
    """Convert a claim with pairs to the record that findings and the report hold."""
    assert claim.ratio is not None and claim.ci95 is not None
    old, new = middle_runs(claim)
    return Measured(
        ratio=claim.ratio,
        low=claim.ci95[0],
        high=claim.ci95[1],
        verdict=verdict,
        loss_note="" if claim.agreement is None else claim.agreement.words,
        peak_bytes_before=old.peak_bytes,
        peak_bytes_after=new.peak_bytes,
        num_pairs=claim.num_pairs,
    )


def middle_runs(claim: Claim) -> tuple[Run, Run]:
    """Return the median run of each of the two sides."""
    return middle([old for old, _ in claim.pairs]), middle([new for _, new in claim.pairs])


def _phases(before: Run, after: Run | None) -> tuple[Phase, ...]:
    """Return the phases that were seen in either run, and the step as a whole."""
    old = before.details["report"]
    new = after.details["report"] if after is not None else None
    late = {phase["name"]: phase["ms"] for phase in new["phases"]} if new is not None else {}
    found = []
    for phase in old["phases"]:
        then = late.get(phase["name"])
        if phase["ms"] is not None or then is not None:
            found.append(Phase(phase["name"], phase["ms"] or 0.0, (then or 0.0) if new is not None else None))
    if old["step_ms"] is not None:
        found.append(Phase("step", old["step_ms"], new["step_ms"] if new is not None else None))
    return tuple(found)


def _next(findings: Sequence[Finding], tried: set[str]) -> str | None:
    """Return the rule code whose fixes promise most among those not tried, or None."""
    promise: dict[str, float] = {}
    for finding in findings:
        if finding.fix is not None and finding.code not in tried and (finding.hot is None or not finding.hot.guard):
            worth = _SURE[finding.confidence] * (finding.gain.low + finding.gain.high) / 2
            promise[finding.code] = max(promise.get(finding.code, 0.0), worth)
    return max(sorted(promise), key=lambda code: promise[code], default=None)


def _try(
    script: Script,
    number: int,
    chosen: Sequence[Finding],
    current: Sequence[SourceFile],
    originals: Sequence[SourceFile],
    now: ScriptVersion,
    report: Callable[[str], None],
    patience: QuietWait,
) -> tuple[FixTrial, list[SourceFile], ScriptVersion]:
    """Compare one rule's fixes with the fixes kept so far, and return the trial, the sources and their version."""
    report(f"{chosen[0].code} {chosen[0].name}: {_titles(chosen)[0]}")
    version = _fixed(current, chosen)
    if all(a.text == b.text for a, b in zip(version, current, strict=True)):
        return _trial(chosen, "not applied", why="its fix could not be applied here"), version, now
    fixed = script.version(f"{number}-{chosen[0].code}", version, originals)
    claim = compare(now, fixed, schedule=ABBA(), stop=_SCREENING, patience=patience)
    if claim.failed == now.name:
        raise TargetError(claim.failure)
    status, why = _status(claim)
    measured = as_measured(claim, status) if claim.ratio is not None and claim.pairs else None
    trial = replace(_trial(chosen, status, why=why), measured=measured)
    report(f"  {status}{_in_words(claim)}{f': {why}' if why else ''}")
    return trial, version, fixed


def _status(claim: Claim) -> tuple[str, str]:
    """Return a trial's status, and the reason where the status alone does not explain it."""
    if claim.failure:
        return "failed", claim.failure
    if claim.busy and claim.verdict is Verdict.INCONCLUSIVE:
        return "not measured", claim.busy
    if not claim.is_gain:
        return "no gain", ""
    if claim.agreement is None or not claim.agreement.is_same:
        return "another loss", "" if claim.agreement is None else claim.agreement.words
    return "kept", ""


def _in_words(claim: Claim) -> str:
    if claim.ratio is None or claim.ci95 is None:
        return ""
    low, high = claim.ci95
    return f", {claim.ratio:.3g}x ({low:.3g} to {high:.3g}, {claim.num_pairs} pairs)"


def _fixed(files: Sequence[SourceFile], findings: Sequence[Finding]) -> list[SourceFile]:
    fixed = []
    for file in files:
        fixes = [finding.fix for finding in findings if finding.path == file.path and finding.fix is not None]
        fixed.append(replace(file, text=apply_fixes(file.text, fixes).source) if fixes else file)
    return fixed


def _trial(findings: Sequence[Finding], status: str, *, why: str = "") -> FixTrial:
    is_safe = all(finding.fix is not None and finding.fix.is_safe for finding in findings)
    return FixTrial(findings[0].code, findings[0].name, len(findings), _titles(findings), is_safe, status, why=why)


def _titles(findings: Sequence[Finding]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(finding.fix.title for finding in findings if finding.fix is not None))


def script_at(path: Path, arguments: Sequence[str], directory: Path, *, num_steps: int, limit_s: float) -> Script:
    """Return the script to measure.

    The working directory is copied if the script lies below it. Otherwise the script's own folder is copied.

    Raises:
        TargetError: There is no such file.
    """
    named, path, here = path, path.resolve(), Path.cwd().resolve()
    if not path.is_file() or path.suffix != ".py":
        raise TargetError(f"--measure runs a training script; {path.name} is none: name one .py file")
    base = here if path.is_relative_to(here) and here != Path.home() else path.parent
    return Script(named, path, tuple(arguments), base, here, directory, num_steps, limit_s)
