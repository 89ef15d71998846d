"""The finals: the best few and the original, each in processes of their own, interleaved in random order.

One round is one process of each. The verdict comes from the rounds: the process is the replicate.
"""

import logging
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from whet.errors import ModelError
from whet.files import size_bytes
from whet.measure.stats import Verdict, compare, noise_floor
from whet.tuner.result import Point, TrialRecord
from whet.tuner.search import Workbench

_LOG = logging.getLogger("whet")
_Run = dict[str, Any]  # what one process measured

ROUNDS = 8
_ROUNDS_ALONE = 3  # of the original, where there is nothing to compare it with
_MIN_ROUNDS = 6  # with fewer, the signed-rank test cannot reach 5 %
_MIN_PAIRS = 2  # one has no interval
_LOST_AFTER = 3  # pairs, each lost: to pass in the end, all the others must be won, and by more
_RUN_S = 0.7  # of timing in each process
_START_S = 2.0  # of a process, before it loads anything
_LIMIT_S = 180.0


def run_finals(
    bench: Workbench,
    contenders: Sequence[TrialRecord],
    *,
    deadline: float,
    rounds: int = ROUNDS,
    seed: int = 0,
    report: Callable[[int, int], None] = lambda done, of: None,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Point, list[Point]]:
    """Measure the original and each contender in `rounds` interleaved rounds; at least six, even past the deadline.
    The original alone: three, one past the deadline.

    Returns the original's point and the contenders', each judged against the original. A contender whose process
    fails is left out of the rest and has no point; a round in which the original's fails is no pair. A contender that
    loses each of its first three pairs is judged by those; where none is left, the finals are over. Raises ModelError
    where the original fails each time.
    """
    order = random.Random(seed)
    least = _MIN_ROUNDS
    if not contenders:
        rounds, least = _ROUNDS_ALONE, 1
    running: list[TrialRecord | None] = [None, *contenders]
    failed: set[int] = set()
    runs: dict[int, list[_Run | None]] = {_number(c): [] for c in running}
    for i in range(rounds):
        if sum(map(bool, runs[-1])) >= least and clock() > deadline:
            break
        for contender in order.sample(running, len(running)):
            value = _measure(bench, contender)
            runs[_number(contender)].append(value)
            if value is None and contender is not None:
                failed.add(contender.number)
        report(i + 1, rounds)
        gone = {number for number in runs if _has_lost(runs[-1], runs[number])} | failed
        running = [c for c in running if c is None or c.number not in gone]
        if contenders and running == [None]:
            break
    return _judged(bench, [c for c in contenders if c.number not in failed], runs)


def _judged(
    bench: Workbench, contenders: Sequence[TrialRecord], runs: dict[int, list[_Run | None]]
) -> tuple[Point, list[Point]]:
    """The original's point, and that of each contender with its verdict."""
    original = [run for run in runs[-1] if run is not None]
    if not original:
        raise ModelError("the original failed each time it was measured; the log above says how")
    baseline = _point(bench, None, original)
    floor = noise_floor([[r["latency_ms"] for r in original]])
    baseline.noise = floor
    points = []
    for contender in contenders:
        pairs = _pairs(runs[-1], runs[contender.number])
        if len(pairs) < _MIN_PAIRS:
            continue
        point = _point(bench, contender, [run for _, run in pairs])
        comparison = compare([a["latency_ms"] for a, _ in pairs], point.process_latencies_ms, noise=floor)
        point.speedup, point.speedup_ci95 = comparison.ratio, comparison.ci95
        point.p_value, point.noise, point.verdict = comparison.p_value, floor, str(comparison.verdict)
        points.append(point)
    return baseline, points


def _pairs(original: Sequence[_Run | None], contender: Sequence[_Run | None]) -> list[tuple[_Run, _Run]]:
    """The rounds that both of them ended, of those that both began."""
    return [(a, b) for a, b in zip(original, contender, strict=False) if a is not None and b is not None]


def _has_lost(original: Sequence[_Run | None], contender: Sequence[_Run | None]) -> bool:
    """Whether a contender was slower in each of the first three pairs. The original itself never is."""
    pairs = _pairs(original, contender)[:_LOST_AFTER]
    is_slower = all(b["latency_ms"] >= a["latency_ms"] for a, b in pairs)
    return contender is not original and len(pairs) == _LOST_AFTER and is_slower


def expected_s(bench: Workbench, num_contenders: int) -> float:
    """About how long all rounds will take: every process starts, loads, warms up and measures."""
    process_s = _START_S + 1.5 * _RUN_S
    return ROUNDS * ((1 + num_contenders) * process_s + float(bench.facts["open_s"]))


def is_gain(point: Point) -> bool:
    return point.verdict == Verdict.PASS


def _number(contender: TrialRecord | None) -> int:
    return -1 if contender is None else contender.number


def _measure(bench: Workbench, contender: TrialRecord | None) -> _Run | None:
    if contender is None:
        return _measure_artefact(bench, "original", None)
    return _measure_artefact(bench, f"trial-{contender.number}", bench.artefact(contender.number))


def peak_bytes_of(bench: Workbench, saved: Path) -> int | None:
    """Peak memory of serving the original from an artefact: the most of three processes; None where one fails."""
    runs = [_measure_artefact(bench, "saved-original", saved) for _ in range(3)]
    return max(run["peak_bytes"] for run in runs if run) if all(runs) else None


def _measure_artefact(bench: Workbench, name: str, directory: Path | None) -> _Run | None:
    outcome = bench.run(
        "measure_finalist",
        {
            "target": bench.target,
            "directory": None if directory is None else str(directory),
            "inputs": str(bench.inputs),
            "budget_s": _RUN_S,
            "num_threads": bench.facts["num_threads"],
        },
        bench.directory / "finals" / name,
        _LIMIT_S,
    )
    if outcome.value is None:
        _LOG.warning("%s failed in the finals: %s", name, outcome.failure.message if outcome.failure else "no result")
    return outcome.value


def _point(bench: Workbench, contender: TrialRecord | None, runs: Sequence[_Run]) -> Point:
    latency = statistics.median(r["latency_ms"] for r in runs)
    facts = bench.facts
    steps = [] if contender is None else contender.steps
    return Point(
        steps=steps,
        label="original" if contender is None else contender.label,
        number=None if contender is None else contender.number,
        latency_ms=latency,
        p90_ms=statistics.median(r["p90_ms"] for r in runs),
        throughput_per_s=facts["num_samples"] * 1e3 / latency,
        peak_bytes=max(r["peak_bytes"] for r in runs),
        live_tensor_bytes=max(r["live_tensor_bytes"] for r in runs),
        cuda_peak_bytes=max((r["cuda_peak_bytes"] for r in runs if r["cuda_peak_bytes"]), default=None),
        size_bytes=facts["original_bytes"] if contender is None else size_bytes(bench.artefact(contender.number)),
        quality=facts["score"] if contender is None else contender.quality,
        agreement=None if contender is None else contender.agreement,
        share_of_limit=bench.share_of_limit(steps, latency),
        process_latencies_ms=[r["latency_ms"] for r in runs],
        fixed_batch=None if contender is None else contender.fixed_batch,
    )
