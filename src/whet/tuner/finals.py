"""The finals: the best few and the original, each in processes of their own, interleaved in random order.

One round is one process of each. The verdict comes from the rounds: the process is the replicate.
"""

import logging
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from whet.errors import ModelError
from whet.measure.isolate import Outcome
from whet.measure.load import Load, total
from whet.measure.quiet import Patience
from whet.measure.stats import Verdict, compare, noise_floor
from whet.tuner.budget import BudgetEnded
from whet.tuner.doubt import doubt_about
from whet.tuner.outlook import MIN_ROUNDS, ROUNDS, RUN_S
from whet.tuner.result import Point, TrialRecord
from whet.tuner.search import Workbench

_LOG = logging.getLogger("whet")
_Run = dict[str, Any]  # what one process measured

_ROUNDS_ALONE = 3  # of the original, where there is nothing to compare it with
_SPARE_ROUNDS = 4  # in place of rounds that other processes disturbed
_MIN_PAIRS = 2  # one has no interval
_LOST_AFTER = 3  # pairs, each lost: to pass in the end, all the others must be won, and by more
_LIMIT_S = 180.0


def run_finals(
    bench: Workbench,
    contenders: Sequence[TrialRecord],
    *,
    deadline: float,
    stop_at: float = math.inf,
    unmeasured: Point | None = None,
    rounds: int = ROUNDS,
    seed: int = 0,
    patience: Patience | None = None,
    report: Callable[[int, int], None] = lambda done, of: None,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Point, list[Point]]:
    """Measure the original and each contender in `rounds` interleaved rounds; at least six, even past the deadline.
    The original alone: three, one past the deadline. No round is begun that would not end by `stop_at`, as `clock`
    tells, and one in which the time runs out does not count.

    Returns the original's point and the contenders', each judged against the original. A contender whose process
    fails is left out of the rest and has no point; a round in which the original's fails is no pair. A contender that
    loses each of its first three pairs is judged by those; where none is left, the finals are over. unmeasured: the
    original's point where the time allows not one round. Raises ModelError where the original fails each time. A
    process that was disturbed on a busy machine is measured again as long as `patience` lasts; where it has run out,
    the finals end, and disturbed processes are in no pair.
    """
    patience = patience or Patience()
    order = random.Random(seed)
    least = MIN_ROUNDS
    if not contenders:
        rounds, least = _ROUNDS_ALONE, 1
    running: list[TrialRecord | None] = [None, *contenders]
    failed: set[int] = set()
    runs: dict[int, list[_Run | None]] = {_number(c): [] for c in running}
    longest_s = 0.0  # that a round took
    for i in range(rounds + _SPARE_ROUNDS):
        began = clock()
        num_pairs = min(len(_pairs(runs[-1], runs[_number(c)])) for c in running)
        is_over = i >= rounds + _num_disturbed(runs) or (num_pairs >= least and began > deadline)
        if is_over or began + longest_s > stop_at or (patience.has_run_out and any(runs[-1])):
            break
        values = {_number(c): _measured(bench, c, patience) for c in order.sample(running, len(running))}
        longest_s = max(longest_s, clock() - began)
        if clock() >= stop_at and not all(values.values()):
            break
        for number, value in values.items():
            runs[number].append(value)
            if value is None and number >= 0:
                failed.add(number)
        report(min(i + 1, rounds), rounds)
        gone = {number for number in runs if _has_lost(runs[-1], runs[number])} | failed
        running = [c for c in running if c is None or c.number not in gone]
        if contenders and running == [None]:
            break
    if unmeasured is not None and not any(runs[-1]) and clock() + longest_s >= stop_at:
        return unmeasured, []
    return _judged(bench, [c for c in contenders if c.number not in failed], runs, patience)


def _measured(bench: Workbench, contender: TrialRecord | None, patience: Patience) -> _Run | None:
    """Measure one process, and again after waiting where other processes disturbed it."""
    value = patience.measure(partial(_measure, bench, contender), _busy)
    if value is not None and patience.goes_on:
        value["busy"] = ""
    return value


def _busy(run: _Run | None) -> str:
    """Return what disturbed a process; "" for a quiet one, and for one that failed."""
    return str(run.get("busy", "")) if run is not None else ""


def _num_disturbed(runs: Mapping[int, Sequence[_Run | None]]) -> int:
    """Return the number of rounds in which some process was disturbed."""
    return sum(any(map(_busy, found)) for found in zip_longest(*runs.values()))


def _judged(
    bench: Workbench, contenders: Sequence[TrialRecord], runs: dict[int, list[_Run | None]], patience: Patience
) -> tuple[Point, list[Point]]:
    """The original's point, and that of each contender with its verdict."""
    ended = [run for run in runs[-1] if run is not None]
    original = [run for run in ended if not _busy(run)] or ended
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
        if comparison.ci95[0] > 1 and (doubt := doubt_about(bench, contender, comparison, patience)):
            point.verdict, point.doubt = str(Verdict.INCONCLUSIVE), doubt
        points.append(point)
    return baseline, points


def _pairs(original: Sequence[_Run | None], contender: Sequence[_Run | None]) -> list[tuple[_Run, _Run]]:
    """The rounds in which both of them ended and neither was disturbed."""
    both = [(a, b) for a, b in zip(original, contender, strict=False) if a is not None and b is not None]
    return [(a, b) for a, b in both if not _busy(a) and not _busy(b)]


def _has_lost(original: Sequence[_Run | None], contender: Sequence[_Run | None]) -> bool:
    """Whether a contender was slower in each of the first three pairs. The original itself never is."""
    pairs = _pairs(original, contender)[:_LOST_AFTER]
    is_slower = all(b["latency_ms"] >= a["latency_ms"] for a, b in pairs)
    return contender is not original and len(pairs) == _LOST_AFTER and is_slower


def is_gain(point: Point) -> bool:
    return point.verdict == Verdict.PASS


def _number(contender: TrialRecord | None) -> int:
    return -1 if contender is None else contender.number


def _measure(bench: Workbench, contender: TrialRecord | None) -> _Run | None:
    name = "original" if contender is None else f"trial-{contender.number}"
    return _value(name, bench.measure(contender, bench.directory / "finals" / name, RUN_S, _LIMIT_S))


def peak_bytes_of(bench: Workbench, saved: Path, libraries: Sequence[str] = ()) -> int | None:
    """Peak memory of serving the original from an artefact: the most of three processes; None where one fails."""
    folder = bench.directory / "finals" / "saved-original"
    outcomes = [bench.measure_artefact(saved, libraries, folder, RUN_S, _LIMIT_S) for _ in range(3)]
    runs = [_value("the saved original", outcome) for outcome in outcomes]
    return max(run["peak_bytes"] for run in runs if run) if all(runs) else None


def _value(name: str, outcome: Outcome) -> _Run | None:
    if outcome.value is None and not isinstance(outcome.failure, BudgetEnded):
        _LOG.warning("%s failed in the finals: %s", name, outcome.failure.message if outcome.failure else "no result")
    return outcome.value


def _point(bench: Workbench, contender: TrialRecord | None, runs: Sequence[_Run]) -> Point:
    latency = statistics.median(r["latency_ms"] for r in runs)
    facts = bench.facts
    steps = [] if contender is None else contender.steps
    size = facts["original_bytes"] if contender is None else contender.size_bytes or 0
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
        size_bytes=size,
        quality=facts["score"] if contender is None else contender.quality,
        change=None if contender is None else contender.change,
        agreement=None if contender is None else contender.agreement,
        share_of_limit=bench.share_of_limit(steps, latency),
        process_latencies_ms=[r["latency_ms"] for r in runs],
        load=asdict(total(Load(**r["load"]) for r in runs)),
        fixed_batch=None if contender is None else contender.fixed_batch,
    )
