"""The work tree against a git reference: process pairs, interleaved, until the verdict is clear."""

import itertools
import random
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from whet.errors import BaselineError, OptionError
from whet.guard import gate
from whet.guard.checkout import Tree, checked_out
from whet.guard.gate import LOOKS, Judgement, Outcome
from whet.guard.report import Gate, Point, Sweep, Verdict
from whet.guard.sweep import grid
from whet.guard.turns import PairTimes, measure_pair
from whet.machine import Machine, describe
from whet.measure.quiet import Patience

_MOST_ROUNDS = 2  # times as many as there are pairs at the last look: some pairs are disturbed and do not count

Measure = Callable[[tuple[Tree, Tree], str, Mapping[str, int], int], PairTimes]
"""Measures a target at a size on each of two trees, in a pair of processes; the number says which of them begins."""


@dataclass
class _Benchmark:
    """One target at one size, and its quiet pairs so far.

    Attributes:
        broken: Why it cannot be measured on one of the sides.
        busy: What disturbed a pair that could not be measured again, or a whole sweep.
        counts_busy: Whether disturbed pairs count, as the user asked for.
    """

    target: str
    sizes: dict[str, int]
    old_ms: list[float] = field(default_factory=list)
    new_ms: list[float] = field(default_factory=list)
    seconds: float = 0.0
    broken: str = ""
    busy: str = ""
    counts_busy: bool = False
    judgement: Judgement | None = None

    @property
    def label(self) -> str:
        return Point(target=self.target, sizes=self.sizes).label

    @property
    def is_over(self) -> bool:
        return bool(self.broken) or (self.judgement is not None and self.judgement.is_clear)


def compare_with(
    targets: Sequence[str],
    *,
    against: str,
    batch: Sequence[int] = (),
    seq: Sequence[int] = (),
    tolerance: float = gate.TOLERANCE,
    looks: Sequence[int] = LOOKS,
    budget_s: float = 0.5,
    time_limit_s: float = 300.0,
    directory: Path | None = None,
    patience: Patience | None = None,
    report: Callable[[Verdict], None] = lambda verdict: None,
) -> Gate:
    """Whether the work tree is slower than a git reference, for each target and size.

    tolerance: slowdowns below it pass, where they are not proven. looks: numbers of pairs after which to decide; the
    last is the most there will be. budget_s: of timing, in each process. A benchmark whose verdict is clear gets no
    more pairs. patience: how long to wait where the machine is busy; pairs that it disturbed do not count.

    Raises BaselineError where the reference cannot be had, OptionError for a tolerance of zero or less.
    """
    if not 0 < tolerance < 1:
        raise OptionError(f"the tolerance must lie between 0 and 1: 0.02 allows two percent; got {tolerance}")
    with checked_out(against, directory) as (old, new), tempfile.TemporaryDirectory(prefix="whet-gate-") as scratch:
        measure = partial(measure_pair, scratch=Path(scratch), budget_s=budget_s, time_limit_s=time_limit_s)
        return run_gate(
            [(target, sizes) for target, sizes in itertools.product(targets, grid(batch, seq))],
            (old, new),
            measure,
            tolerance=tolerance,
            looks=looks,
            patience=patience,
            report=report,
        )


def run_gate(
    benchmarks: Sequence[tuple[str, dict[str, int]]],
    trees: tuple[Tree, Tree],
    measure: Measure,
    *,
    tolerance: float = gate.TOLERANCE,
    looks: Sequence[int] = LOOKS,
    seed: int = 0,
    patience: Patience | None = None,
    report: Callable[[Verdict], None] = lambda verdict: None,
) -> Gate:
    """Measure pairs in turn, one of each benchmark, and judge at each look; the order within a pair is random.

    A pair that other processes disturbed is measured again as long as there is patience, and does not count otherwise.
    """
    started = time.monotonic()
    patience = patience or Patience()
    running = [_Benchmark(target, sizes) for target, sizes in benchmarks]
    order, first = random.Random(seed), 0
    for i in range(_MOST_ROUNDS * looks[-1]):
        first = order.randrange(2) if i % 2 == 0 else 1 - first  # AB BA or BA AB
        for benchmark in running:
            if benchmark.is_over or patience.has_run_out:
                continue
            is_new = _add_pair(benchmark, trees, first, measure, patience)
            if is_new and len(benchmark.old_ms) in looks:
                benchmark.judgement = gate.judge(
                    benchmark.old_ms,
                    benchmark.new_ms,
                    tolerance=tolerance,
                    num_benchmarks=len(running),
                    looks=looks,
                )
            report(_verdict(benchmark, None))
        if patience.has_run_out or all(b.is_over for b in running):
            break
    for benchmark in running:
        if patience.has_run_out and not benchmark.is_over:
            benchmark.busy = benchmark.busy or patience.sentence
    verdicts = _final(running)
    return Gate(
        outcome=gate.overall([Outcome(v.outcome) for v in verdicts]).value,
        compared=f"{trees[1].name} against {trees[0].name}",
        tolerance=tolerance,
        fingerprint=describe().fingerprint,
        verdicts=verdicts,
        seconds=time.monotonic() - started,
    )


def against_baseline(baseline: Sweep, now: Sweep, *, tolerance: float = gate.TOLERANCE) -> Gate:
    """A sweep against a saved one of the same machine; points that only one of them has are said to be inconclusive.

    Raises BaselineError where the machine, torch or thread settings differ, with what differs.
    """
    check_machine(baseline, Machine(**_typed(now.machine)), now.fingerprint)
    before = {point.label: point for point in baseline.points}
    benchmarks = []
    for point in now.points:
        benchmark = _Benchmark(point.target, point.sizes, new_ms=point.process_latencies_ms)
        benchmark.old_ms = before[point.label].process_latencies_ms if point.label in before else []
        if point.label not in before:
            benchmark.broken = "not in the baseline"
        elif busy := _disturbed(before[point.label], point):
            benchmark.busy = busy
        elif min(len(benchmark.old_ms), len(benchmark.new_ms)) < 2:
            benchmark.broken = point.reason or "fewer than two processes on a side: save with --processes 5 or more"
        else:
            benchmark.judgement = gate.judge_unpaired(benchmark.old_ms, benchmark.new_ms, tolerance=tolerance)
        benchmarks.append(benchmark)
    verdicts = _final(benchmarks)
    return Gate(
        outcome=gate.overall([Outcome(v.outcome) for v in verdicts]).value,
        compared=f"now against the baseline of {baseline.started_at or 'another time'}",
        tolerance=tolerance,
        fingerprint=now.fingerprint,
        verdicts=verdicts,
    )


def check_machine(baseline: Sweep, machine: Machine, fingerprint: str) -> None:
    """Raises BaselineError where a baseline is of another machine, torch or thread setting, with what differs."""
    if baseline.fingerprint != fingerprint:
        differs = "; ".join(machine.differences(baseline.machine)) or "the fingerprint"
        raise BaselineError(
            f"the baseline was measured elsewhere ({differs}); times of different machines cannot be compared: "
            "save a baseline here, or use --against"
        )


def _typed(machine: dict[str, Any]) -> dict[str, Any]:
    return {**machine, "isa": tuple(machine["isa"])}


def _add_pair(
    benchmark: _Benchmark, trees: tuple[Tree, Tree], first: int, measure: Measure, patience: Patience
) -> bool:
    """Measure one pair, and tell whether it counts. A side that cannot be measured ends the benchmark."""
    started = time.monotonic()
    try:
        times = patience.measure(
            lambda: measure(trees, benchmark.target, benchmark.sizes, first), lambda found: found.cause
        )
    except BaselineError as error:
        benchmark.broken = str(error)
        return False
    finally:
        benchmark.seconds += time.monotonic() - started
    if times.cause:
        benchmark.busy, benchmark.counts_busy = patience.sentence, patience.goes_on
        if not patience.goes_on:
            return False
    benchmark.old_ms.append(times.old_ms)
    benchmark.new_ms.append(times.new_ms)
    return True


def _disturbed(before: Point, now: Point) -> str:
    """Return why two sweeps of a point cannot be held against each other, where other processes disturbed either."""
    if now.busy:
        return now.busy
    return f"the baseline was measured on a busy machine ({before.busy}); save it again" if before.busy else ""


def _final(benchmarks: Sequence[_Benchmark]) -> list[Verdict]:
    """The verdicts, corrected for the number of benchmarks."""
    judged = [b for b in benchmarks if b.judgement is not None and not b.broken]
    outcomes = gate.holm([b.judgement for b in judged if b.judgement is not None])
    by_label = {b.label: outcome for b, outcome in zip(judged, outcomes, strict=True)}
    return [_verdict(b, by_label.get(b.label)) for b in benchmarks]


def _verdict(benchmark: _Benchmark, outcome: Outcome | None) -> Verdict:
    judgement = benchmark.judgement
    decided = outcome or (judgement.outcome if judgement and not benchmark.broken else Outcome.INCONCLUSIVE)
    return Verdict(
        label=benchmark.label,
        outcome=decided.value,
        slowdown=judgement.slowdown if judgement else None,
        ci95=judgement.ci95 if judgement else None,
        p_slower=judgement.p_slower if judgement else None,
        noise=judgement.noise if judgement else None,
        num_pairs=min(len(benchmark.old_ms), len(benchmark.new_ms)),
        seconds=benchmark.seconds,
        reason=benchmark.broken,
        busy=benchmark.busy if decided is Outcome.INCONCLUSIVE or benchmark.counts_busy else "",
        old_ms=benchmark.old_ms,
        new_ms=benchmark.new_ms,
    )
