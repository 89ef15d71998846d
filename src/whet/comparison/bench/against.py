"""Compare the work tree with a git reference: measure process pairs in turns until the verdict is clear."""

import itertools
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from whet.comparison import sequential
from whet.comparison.bench.checkout import Tree, checked_out
from whet.comparison.bench.point import first_calls
from whet.comparison.bench.report import BenchmarkVerdict, Gate, Point, Sweep, read_sweep
from whet.comparison.bench.sweep import grid, names_of
from whet.comparison.claim import Claim, Verdict
from whet.comparison.compare import Progress, compare_all
from whet.comparison.run import Side
from whet.comparison.schedules import Schedule, Turns
from whet.comparison.stopping import Sequential
from whet.comparison.tolerance import TOLERANCE
from whet.comparison.turns import take_turns
from whet.comparison.variant import Variant
from whet.errors import BaselineError, OptionError
from whet.measure.machine import Machine, describe
from whet.measure.quiet import WAIT_S, OnBusy, QuietWait
from whet.ui.units import duration_s
from whet.workloads.target_name import check_name

Benchmark = tuple[str, tuple[Side, Side]]
"""What people call a benchmark, and the same target at the same size in the old tree and in the new one."""


def compare_with(
    targets: str | Sequence[str],
    *,
    against: str,
    batch: Sequence[int] = (),
    seq: Sequence[int] = (),
    tolerance: float = TOLERANCE,
    looks: Sequence[int] = sequential.LOOKS,
    budget_s: float | str = 0.5,
    time_limit_s: float | str = 300.0,
    directory: Path | None = None,
    on_busy: str = OnBusy.WAIT,
    busy_wait_s: float | str = WAIT_S,
    patience: QuietWait | None = None,
    report: Callable[[BenchmarkVerdict], None] = lambda verdict: None,
) -> Gate:
    """Tell whether the work tree is slower than a git reference, for each target and size.

    A benchmark whose verdict is clear gets no more pairs.

    Args:
        targets: A name as for `whet tune`, or several.
        against: The git reference.
        batch: Batch sizes; the target's own, if not given.
        seq: Sequence lengths; the target's own, if not given.
        tolerance: The slowdown that passes, where it is not proven: 0.02 is two percent.
        looks: Numbers of pairs after which to decide; the last is the most there will be.
        budget_s: Seconds of timing in each process.
        time_limit_s: Seconds after which a process is ended.
        directory: Any directory of the work tree; the current one, if not given.
        on_busy: What to do where other processes disturb: "wait", "inconclusive" or "go-on". Pairs that were disturbed
            do not count, but with the last.
        busy_wait_s: Seconds to wait in all.
        patience: In place of the two above, where the caller shows the waiting.
        report: Is told how a benchmark stands, after each of its pairs.

    Raises:
        BaselineError: The reference cannot be had.
        OptionError: The tolerance is not between 0 and 1.
        TargetError: No directory is given, and the current one shows that there is no such target.
    """
    targets = names_of(targets)
    budget_s, time_limit_s = duration_s("budget_s", budget_s), duration_s("time_limit_s", time_limit_s)
    busy_wait_s = duration_s("busy_wait_s", busy_wait_s, may_be_zero=True)
    if not 0 < tolerance < 1:
        raise OptionError(f"the tolerance must lie between 0 and 1: 0.02 allows two percent; got {tolerance}")
    patience = patience or QuietWait(OnBusy.checked(on_busy), busy_wait_s)
    if directory is None:  # names are looked up here; of another directory, the sides tell what is wrong
        for target in targets:
            check_name(target)
    with checked_out(against, directory) as trees, tempfile.TemporaryDirectory(prefix="whet-gate-") as scratch:
        benchmarks: list[Benchmark] = []
        for number, (target, sizes) in enumerate(itertools.product(targets, grid(batch, seq))):
            label = Point(target=target, sizes=sizes).label
            sides = [
                side_in(tree, label, target, sizes, Path(scratch) / f"{number}-{i}", budget_s, time_limit_s)
                for i, tree in enumerate(trees)
            ]
            benchmarks.append((label, (sides[0], sides[1])))
        stop = Sequential(tolerance, tuple(looks))
        patience.begin()
        return run_gate(benchmarks, trees, Turns(take_turns), stop, patience=patience, report=report)


def side_in(
    tree: Tree,
    label: str,
    target: str,
    sizes: dict[str, int],
    directory: Path,
    budget_s: float,
    time_limit_s: float,
) -> Variant:
    """Return a benchmark in one of the trees, as one side of a comparison; see Variant."""
    return Variant(
        name=f"{label} in {tree.name}",
        build=first_calls,
        arguments={"target": target, "sizes": sizes},
        directory=directory,
        budget_s=budget_s,
        time_limit_s=time_limit_s,
        environment=tree.environment,
        working_directory=tree.working_directory if tree.working_directory.is_dir() else tree.root,
        with_evidence=False,
    )


def run_gate(
    benchmarks: Sequence[Benchmark],
    trees: tuple[Tree, Tree],
    schedule: Schedule,
    stop: Sequential,
    *,
    patience: QuietWait | None = None,
    report: Callable[[BenchmarkVerdict], None] = lambda verdict: None,
) -> Gate:
    """Compare the two sides of every benchmark, and judge all of them together.

    `trees` are the old one and the new one. `report` is told how a benchmark stands, after each of its pairs.
    """
    started = time.monotonic()
    labels = {pair[0].name: label for label, pair in benchmarks}
    names = {side.name: tree.name for _, pair in benchmarks for side, tree in zip(pair, trees, strict=True)}

    def show(number: int, measured: Sequence[Progress]) -> None:
        for one in measured:
            claim = stop.judge(*one.times, len(benchmarks), ())
            report(verdict_of(labels[one.pair[0].name], claim))

    pairs = [pair for _, pair in benchmarks]
    claims = compare_all(pairs, schedule=schedule, stop=stop, patience=patience, report=show).claims
    verdicts = [
        verdict_of(label, claim, f"in {names[claim.failed]}: {claim.failure}" if claim.failure else "")
        for (label, _), claim in zip(benchmarks, claims, strict=True)
    ]
    return Gate(
        outcome=sequential.overall([claim.verdict for claim in claims]).value,
        compared=f"{trees[1].name} against {trees[0].name}",
        tolerance=stop.tolerance,
        fingerprint=describe().fingerprint,
        verdicts=verdicts,
        seconds=time.monotonic() - started,
    )


def read_baseline(path: str | Path) -> Sweep:
    """Read a saved sweep, to be held against on this machine.

    Raises:
        BaselineError: There is none, it is damaged, or it is of another machine.
    """
    baseline = read_sweep(Path(path))
    check_baseline(baseline)
    return baseline


def check_baseline(baseline: Sweep) -> None:
    """Raise BaselineError where a baseline is of another machine."""
    machine = describe()
    check_machine(baseline, machine, machine.fingerprint)


def against_baseline(baseline: Sweep, now: Sweep, *, tolerance: float = TOLERANCE) -> Gate:
    """Judge a sweep against a saved one of the same machine. Points that only one of them has are inconclusive.

    Both sweeps need two processes a point at least, which differ from each other: bench(targets, processes=5).

    Raises:
        BaselineError: The machine, torch or thread settings differ; the message says what differs.
    """
    check_machine(baseline, Machine(**{**now.machine, "isa": tuple(now.machine["isa"])}), now.fingerprint)
    before = {point.label: point for point in baseline.points}
    claims, reasons = [], []
    for point in now.points:
        claim, reason = _unpaired(before.get(point.label), point, tolerance)
        claims.append(claim)
        reasons.append(reason)
    claims = sequential.holm(claims)
    verdicts = [verdict_of(p.label, claim, why) for p, claim, why in zip(now.points, claims, reasons, strict=True)]
    return Gate(
        outcome=sequential.overall([claim.verdict for claim in claims]).value,
        compared=f"now against the baseline of {baseline.started_at or 'another time'}",
        tolerance=tolerance,
        fingerprint=now.fingerprint,
        verdicts=verdicts,
    )


def _unpaired(before: Point | None, now: Point, tolerance: float) -> tuple[Claim, str]:
    """Judge one point against the baseline's, and return the claim, and why there is none ("" where there is one)."""
    old_ms = before.process_latencies_ms if before is not None else []
    new_ms = now.process_latencies_ms
    is_open = Claim(verdict=Verdict.INCONCLUSIVE, old_s=_seconds(old_ms), new_s=_seconds(new_ms))
    if before is None:
        return is_open, "not in the baseline"
    if busy := _disturbed(before, now):
        return replace(is_open, busy=busy), ""
    if min(len(old_ms), len(new_ms)) < 2:
        return is_open, now.reason or "fewer than two processes on a side: save with --processes 5 or more"
    return sequential.judge_unpaired(_seconds(old_ms), _seconds(new_ms), tolerance=tolerance), ""


def _seconds(times_ms: Sequence[float]) -> tuple[float, ...]:
    return tuple(time_ms / 1e3 for time_ms in times_ms)


def check_machine(baseline: Sweep, machine: Machine, fingerprint: str) -> None:
    """Raise BaselineError, saying what differs, unless the machine, torch and number of threads are the baseline's."""
    if baseline.fingerprint != fingerprint:
        differs = "; ".join(machine.differences(baseline.machine)) or "the fingerprint"
        raise BaselineError(
            f"the baseline was measured elsewhere ({differs}); times of different machines cannot be compared: "
            "save a baseline here, or use --against"
        )


def _disturbed(before: Point, now: Point) -> str:
    """Return why two sweeps of a point cannot be held against each other, where other processes disturbed either."""
    if now.busy:
        return now.busy
    return f"the baseline was measured on a busy machine ({before.busy}); save it again" if before.busy else ""


def verdict_of(label: str, claim: Claim, reason: str = "") -> BenchmarkVerdict:
    """Return a claim as the gate's report holds it. `reason` says why it could not be measured."""
    return BenchmarkVerdict(
        label=label,
        outcome=claim.verdict.value,
        slowdown=claim.slowdown,
        ci95=claim.slowdown_ci95,
        p_slower=claim.p_value,
        noise=None if claim.ratio is None else claim.noise,
        num_pairs=min(len(claim.old_s), len(claim.new_s)),
        seconds=claim.seconds,
        reason=reason,
        busy=claim.busy,
        old_ms=[1e3 * old_s for old_s in claim.old_s],
        new_ms=[1e3 * new_s for new_s in claim.new_s],
    )
