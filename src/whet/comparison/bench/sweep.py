"""Measure a target at many sizes, each point in processes of its own. The sweep goes on after a point that fails."""

import datetime
import itertools
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from whet.comparison.bench.growth import Growth, fit_growth
from whet.comparison.bench.point import measure_point
from whet.comparison.bench.report import Point, Sweep
from whet.comparison.variant import in_words
from whet.errors import OptionError, TargetError, type_name
from whet.measure.isolate import QUIET, Outcome, run_isolated
from whet.measure.load import Load, total
from whet.measure.machine import describe, load_limits, versions
from whet.measure.quiet import WAIT_S, OnBusy, QuietWait
from whet.measure.stats import percentile
from whet.ui.figures import MIN_SAMPLES_FOR_P99
from whet.ui.units import duration_s
from whet.workloads.target_name import check_name

_MEDIANS = ("latency_ms", "p50_ms", "p90_ms", "p99_ms", "throughput_per_s", "share_of_limit", "watts", "energy_j")
_LEAST_BYTES = 2**20  # what calls hold below that is the allocator's rounding


def bench(
    targets: str | Sequence[str],
    *,
    batch: Sequence[int] = (),
    seq: Sequence[int] = (),
    processes: int = 1,
    budget_s: float | str = 1.0,
    with_memory: bool = False,
    with_energy: bool = False,
    time_limit_s: float | str = 300.0,
    memory_limit_bytes: int | None = None,
    on_busy: str = OnBusy.WAIT,
    busy_wait_s: float | str = WAIT_S,
    patience: QuietWait | None = None,
    report: Callable[[Point], None] = lambda point: None,
) -> Sweep:
    """Measure each target at each batch size and sequence length.

    Args:
        targets: A name as for `whet tune`, or several.
        batch: Batch sizes. Without any, each target keeps its own.
        seq: Sequence lengths. Without any, each target keeps its own.
        processes: Processes for each point. More than one shows how processes scatter, which a baseline needs.
        budget_s: Seconds of timing in each process.
        with_memory: Whether to measure the memory that calls allocate.
        with_energy: Whether to read energy counters.
        time_limit_s: Seconds after which a process is ended.
        memory_limit_bytes: The memory limit of each process.
        on_busy: "wait" for a quiet machine, "inconclusive" not to wait, "go-on" to accept disturbed times. The `busy`
            of a disturbed point says what disturbed it.
        busy_wait_s: Seconds of waiting in all.
        patience: Replaces the two arguments above, where the caller shows the waiting.
        report: Called with each point.

    Raises:
        OptionError: A size is below 1.
        TargetError: A target's name alone shows that there is no such target.
        WhetError: A target cannot be had at any size.
    """
    targets = names_of(targets)
    budget_s, time_limit_s = duration_s("budget_s", budget_s), duration_s("time_limit_s", time_limit_s)
    busy_wait_s = duration_s("busy_wait_s", busy_wait_s, may_be_zero=True)
    all_sizes = _checked(targets, batch, seq, processes, budget_s)
    patience = patience or QuietWait(OnBusy.checked(on_busy), busy_wait_s)
    patience.begin()
    machine = describe()
    load_limits(machine)  # measured once, before anything else runs
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    options = {"budget_s": budget_s, "with_memory": with_memory, "with_energy": with_energy, "with_limit": True}
    points = []
    with tempfile.TemporaryDirectory(prefix="whet-bench-") as scratch:
        for target, sizes in itertools.product(targets, all_sizes):
            arguments = {"target": target, "sizes": sizes, **options}
            run = partial(
                run_isolated,
                measure_point,
                arguments,
                Path(scratch),
                time_limit_s=time_limit_s,
                memory_limit_bytes=memory_limit_bytes,
                environment=QUIET,
            )
            points.append(_measured(target, sizes, run, processes, patience))
            report(points[-1])
    return Sweep(
        started_at=started,
        fingerprint=machine.fingerprint,
        machine=machine.facts(),
        versions=versions(),
        points=points,
        growth={target: _growth([p for p in points if p.target == target]) for target in targets},
    )


def names_of(targets: str | Sequence[str]) -> list[str]:
    """Return one target's name or several as a list.

    Raises:
        TargetError: One of them is no name, but a model or a workload in memory.
    """
    names = [targets] if isinstance(targets, str) or not isinstance(targets, Sequence) else list(targets)
    for name in names:
        if not isinstance(name, str):
            raise TargetError(
                f"whet.bench measures targets by name, since each size is built anew in a process of its own; got "
                f"{type_name(name)}. Write a function that returns (model, inputs), and name it 'FILE.py:FUNCTION'; "
                "whet.compare takes workloads in memory"
            )
    return names


def _checked(
    targets: Sequence[str], batch: Sequence[int], seq: Sequence[int], processes: int, budget_s: float
) -> list[dict[str, int]]:
    """Check what can be checked before the work, and return the sizes to measure."""
    if processes < 1 or budget_s <= 0:
        raise OptionError(
            f"processes={processes}, budget_s={budget_s:g}: a point needs at least one process and some time; give more"
        )
    all_sizes = grid(batch, seq)
    for target in targets:
        check_name(target)
    return all_sizes


def _measured(
    target: str, sizes: dict[str, int], run: Callable[[], Outcome], processes: int, patience: QuietWait
) -> Point:
    """Measure a point in so many processes; fewer where one fails or the machine stays busy."""
    outcomes = []
    for _ in range(processes):
        outcomes.append(patience.measure(run, _cause))
        if outcomes[-1].failure is not None or patience.has_run_out:
            break
    point = combined(target, sizes, outcomes)
    if any(map(_cause, outcomes)):
        point.busy = patience.sentence
    return point


def grid(batch: Sequence[int], seq: Sequence[int]) -> list[dict[str, int]]:
    """Return every pair of sizes. Without sizes there is one empty entry: the target as it is.

    Raises:
        OptionError: A size is below 1.
    """
    for name, sizes in (("batch", batch), ("seq", seq)):
        if any(size < 1 for size in sizes):
            raise OptionError(f"--{name} takes sizes of 1 or more, as 1,8,32; leave out what is below 1")
    axes = [[(name, size) for size in sizes] for name, sizes in (("batch", batch), ("seq", seq)) if sizes]
    return [dict(choice) for choice in itertools.product(*axes)]


def _cause(outcome: Outcome) -> str:
    """Return what disturbed a process on a busy machine; "" for a quiet one, and for one that failed."""
    return str(outcome.value["cause"]) if outcome.value is not None else ""


def combined(target: str, sizes: dict[str, int], outcomes: Sequence[Outcome]) -> Point:
    """Combine what a point's processes measured: the medians, the largest peaks, and the reason of a failure."""
    values = [outcome.value for outcome in outcomes if outcome.value is not None]
    failure = next((outcome.failure for outcome in outcomes if outcome.failure is not None), None)
    if not values:
        assert failure is not None
        return Point(target=target, sizes=sizes, status="failed", reason=in_words(failure))
    first = values[0]
    stopped = failure.message if failure else next((v["stopped_by"] for v in values if v["stopped_by"]), None)
    medians = {
        name: statistics.median(v[name] for v in values)
        for name in _MEDIANS
        if all(v.get(name) is not None for v in values)
    }
    samples_ms = [sample for v in values for sample in v["samples_ms"]]
    if "p99_ms" not in medians and len(samples_ms) >= MIN_SAMPLES_FOR_P99:  # too few calls in each, enough in all
        medians["p99_ms"] = percentile(samples_ms, 99)
    peaks = {
        name: max(v[name] for v in values)
        for name in ("peak_bytes", "working_bytes", "cuda_peak_bytes", "live_tensor_bytes")
        if all(v.get(name) is not None for v in values)
    }
    return Point(
        target=target,
        sizes=sizes,
        status="partial" if stopped else "done",
        reason=stopped or "",
        num_samples=first["num_samples"],
        num_calls=sum(v["num_calls"] for v in values),
        energy_reason=first.get("energy_reason", ""),
        process_latencies_ms=[v["latency_ms"] for v in values],
        samples_ms=first["samples_ms"],
        load=asdict(total(Load(**v["load"]) for v in values if "load" in v)),
        **medians,
        **peaks,
    )


def _growth(points: Sequence[Point]) -> list[Growth]:
    """Fit how time and memory grow with size, over the points that nothing disturbed."""
    done = [p for p in points if p.latency_ms is not None and not p.busy]
    time = fit_growth("time", [p.sizes for p in done], [p.latency_ms or 0.0 for p in done])
    held = [p for p in done if (p.working_bytes or 0) >= _LEAST_BYTES]
    return time + fit_growth("memory", [p.sizes for p in held], [float(p.working_bytes or 0) for p in held])
