"""Summarise a run in figures and in one sentence."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from whet.measure.latency_histogram import LatencyHistogram
from whet.profiling.bounds import BOUND_SHARE
from whet.scripts.monitor import metrics
from whet.scripts.monitor.ranks import RankRow
from whet.scripts.monitor.run import Run
from whet.scripts.monitor.series import Cell
from whet.ui.figures import MIN_SAMPLES_FOR_P99, percent

FORMAT = 1


@dataclass(frozen=True)
class Latency:
    """Describe the time of a step in milliseconds. `p99_ms` is None below 500 steps."""

    mean_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float | None
    longest_ms: float


@dataclass(frozen=True)
class Gpu:
    """Describe the use of one GPU. A figure is None if it is not available here. Fractions are from 0 to 1.

    Attributes:
        name: Its name; "" if unknown.
        utilisation: The share of the time in which a kernel ran.
        peak_bytes: The most memory in use, as sampled.
        peak_allocated_bytes: The most memory held by tensors, as sampled.
        peak_reserved_bytes: The most memory reserved by PyTorch's allocator, as sampled.
        fragmentation: The mean share of the reserved memory that is free in split blocks.
    """

    number: int
    name: str
    utilisation: float | None = None
    peak_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    fragmentation: float | None = None
    peak_fragmentation: float | None = None


@dataclass(frozen=True)
class Summary:
    """Summarise a run from its beginning until now, or until its end.

    A figure is None if it was not measured or is not available here; it is never 0 instead. Fractions are from 0 to 1.
    Rates are over the time that the steps took.

    Attributes:
        started_at: When the run began, in ISO format.
        exit_code: The command's exit code.
        message: What went wrong, or "".
        is_partial: Whether the run still runs or failed. The figures then cover only the time until now.
        sentence: The result in words.
        latency: The time of a step; None without steps.
        data_wait: The share of the steps' time that was spent waiting for data.
        phases: The share of each phase, with the rest.
        num_cores: The number of cores that the run may use.
        cpu: The run's mean use of these cores.
        peak_cpu: The run's highest use of these cores, as sampled.
        peak_rss_bytes: The most resident memory of the process and all that it started, as sampled.
        machine_cpu: The mean use of all cores by all processes.
        ranks: The figures of each rank, where several processes trained together.
        straggler: Which rank the others waited for, in words, or "".
        unavailable: What could not be measured, and why.
    """

    name: str
    command: str
    host: str
    started_at: str
    duration_s: float
    exit_code: int | None
    message: str
    is_partial: bool
    sentence: str
    num_steps: int
    num_samples: int | None
    num_tokens: int | None
    latency: Latency | None
    steps_per_s: float | None
    samples_per_s: float | None
    tokens_per_s: float | None
    data_wait: float | None
    phases: dict[str, float]
    num_cores: int
    cpu: float | None
    peak_cpu: float | None
    peak_rss_bytes: int | None
    gpus: tuple[Gpu, ...]
    machine_cpu: float | None = None
    unavailable: dict[str, str] = field(default_factory=dict)
    ranks: tuple[RankRow, ...] = ()
    straggler: str = ""
    notes: tuple[str, ...] = ()
    format: int = FORMAT

    def to_json(self, indent: int | None = 2) -> str:
        """Return the summary as a JSON object. With `indent=None`, it is on one line."""
        return json.dumps(asdict(self), indent=indent, ensure_ascii=False) + "\n"


def summarise(run: Run) -> Summary:
    totals, whole, ending = run.totals(), run.whole(), run.ending
    total_s, shares = totals.latencies.total_s, totals.shares()
    cpu, machine, rss = whole.get(metrics.CPU), whole.get(metrics.MACHINE_CPU), whole.get(metrics.RSS)

    def rate(count: int | None) -> float | None:
        return count / total_s if count is not None and total_s else None

    latency = _latency(totals.latencies)
    return Summary(
        name=run.facts.name,
        command=run.facts.command,
        host=run.facts.host,
        started_at=run.started_at,
        duration_s=run.elapsed_s(),
        exit_code=ending.exit_code if ending else None,
        message=ending.message if ending else "",
        is_partial=ending is None or ending.has_failed,
        sentence=_sentence(totals.num_steps, latency, shares),
        num_steps=totals.num_steps,
        num_samples=totals.num_samples,
        num_tokens=totals.num_tokens,
        latency=latency,
        steps_per_s=rate(totals.num_steps or None),
        samples_per_s=rate(totals.num_samples),
        tokens_per_s=rate(totals.num_tokens),
        data_wait=shares.get(metrics.DATA_WAIT),
        phases=shares,
        num_cores=run.facts.num_cores,
        cpu=cpu.mean / 100 if cpu else None,
        peak_cpu=cpu.high / 100 if cpu else None,
        machine_cpu=machine.mean / 100 if machine else None,
        peak_rss_bytes=int(rss.high) if rss else None,
        gpus=_gpus(whole, run.gpu_names),
        ranks=tuple(run.ranks.rows(whole=True)),
        straggler=run.ranks.straggler(whole=True),
        unavailable=run.unavailable(),
        notes=tuple(run.notes()),
    )  # fmt: skip


def _latency(histogram: LatencyHistogram) -> Latency | None:
    p50, p90, p99 = (histogram.percentile_s(percent) for percent in (50, 90, 99))
    if p50 is None or p90 is None or p99 is None:
        return None
    return Latency(
        mean_ms=histogram.total_s / histogram.count * 1e3,
        p50_ms=p50 * 1e3,
        p90_ms=p90 * 1e3,
        p99_ms=p99 * 1e3 if histogram.count >= MIN_SAMPLES_FOR_P99 else None,
        longest_ms=histogram.longest_s * 1e3,
    )


def _gpus(whole: dict[str, Cell], names: Mapping[int, str]) -> tuple[Gpu, ...]:
    numbers = {int(key.partition(":")[2]) for key in whole if key.startswith(("gpu_", "cuda_"))}

    def cell(key: str, number: int) -> Cell | None:
        return whole.get(f"{key}:{number}")

    def peak(key: str, number: int) -> int | None:
        found = cell(key, number)
        return int(found.high) if found else None

    found = []
    for number in sorted(numbers):
        busy, split = cell(metrics.GPU, number), cell(metrics.CUDA_FRAGMENTATION, number)
        found.append(
            Gpu(
                number=number,
                name=names.get(number, ""),
                utilisation=busy.mean / 100 if busy else None,
                peak_bytes=peak(metrics.GPU_MEMORY, number),
                peak_allocated_bytes=peak(metrics.CUDA_ALLOCATED, number),
                peak_reserved_bytes=peak(metrics.CUDA_RESERVED, number),
                fragmentation=split.mean / 100 if split else None,
                peak_fragmentation=split.high / 100 if split else None,
            )
        )
    return tuple(found)


def _sentence(num_steps: int, latency: Latency | None, shares: dict[str, float]) -> str:
    if latency is None:
        return "No training step was seen; the figures cover the process and the machine only."
    steps = f"{num_steps:,} step{'s' if num_steps != 1 else ''}, half of them within {latency.p50_ms:,.3g} ms"
    wait = shares.get(metrics.DATA_WAIT)
    if wait is None:
        return f"{steps}."
    if wait >= BOUND_SHARE:
        return f"Input-bound: {percent(wait, decimals=0)} of the step time went into waiting for data. {steps}."
    return f"{steps}; {percent(wait, decimals=1)} of the step time went into waiting for data."
