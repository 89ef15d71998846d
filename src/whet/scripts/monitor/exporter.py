"""Export a run as Prometheus metrics. A figure that was not measured has no metric, instead of a zero.

Source: prometheus.io/docs/practices/naming (base units, `_total` for counters, ratios from 0 to 1).
"""

from collections.abc import Iterator
from typing import Any

from whet.errors import MissingExtra
from whet.scripts.monitor import metrics
from whet.scripts.monitor.run import Run

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

# For each key of a row's cells: the metric's name, its help text, and the factor that converts the cell's unit.
_GAUGES = {
    metrics.CPU: ("whet_cpu_utilization_ratio", "CPU time of this run over that of the cores it may use", 0.01),
    metrics.MACHINE_CPU: ("whet_machine_cpu_utilization_ratio", "CPU time in use on the whole machine", 0.01),
    metrics.RSS: ("whet_resident_memory_bytes", "Resident memory of the process and all it started", 1.0),
    metrics.MACHINE_MEMORY: ("whet_machine_memory_used_bytes", "Memory in use on the whole machine", 1.0),
    metrics.GPU: ("whet_gpu_utilization_ratio", "Share of the time in which a kernel ran", 0.01),
    metrics.GPU_MEMORY: ("whet_gpu_memory_used_bytes", "Memory in use on the GPU", 1.0),
    metrics.CUDA_ALLOCATED: ("whet_cuda_allocated_bytes", "Memory held by tensors", 1.0),
    metrics.CUDA_RESERVED: ("whet_cuda_reserved_bytes", "Memory reserved by PyTorch's allocator", 1.0),
    metrics.CUDA_FRAGMENTATION: ("whet_cuda_fragmentation_ratio", "Reserved memory free in split blocks", 0.01),
}

# For each figure of a rank: the metric's name and its help text.
_OF_RANKS = (
    ("num_steps", "whet_rank_steps", "Training steps of the rank"),
    ("total_s", "whet_rank_step_seconds", "Time of the rank's steps"),
    ("communication_s", "whet_rank_communication_seconds", "Time in which the rank's steps waited for others"),
    ("num_samples", "whet_rank_samples", "Training samples of the rank"),
    ("num_tokens", "whet_rank_tokens", "Training tokens of the rank"),
    ("rss_bytes", "whet_rank_resident_memory_bytes", "Resident memory of the rank's process"),
)


class Exporter:
    """Write the metrics that Prometheus scrapes.

    Raises:
        MissingExtra: prometheus-client is not installed.
    """

    def __init__(self, run: Run) -> None:
        try:
            from prometheus_client import core, exposition
        except ImportError as error:
            raise MissingExtra("prometheus-client", "monitor", "the metrics of whet monitor") from error
        self._run = run
        self._exposition = exposition
        self._families: Any = core
        self._registry = core.CollectorRegistry(auto_describe=False)
        self._registry.register(self)  # any object with a method `collect` is a collector

    def scrape(self, accept: str = "") -> tuple[bytes, str]:
        """Return the metrics and their content type, in the format that an Accept header asks for."""
        encode, content_type = self._exposition.choose_encoder(accept)
        return encode(self._registry), content_type

    def collect(self) -> Iterator[Any]:
        """Yield all metrics. prometheus-client calls this at every scrape."""
        families, facts = self._families, self._run.facts
        info = families.GaugeMetricFamily("whet_run", "1 while the run goes on, 0 after", labels=["name", "pid"])
        info.add_metric([facts.name, str(facts.pid)], 0.0 if self._run.ending else 1.0)
        yield info
        yield from self._steps()
        yield from self._ranks()
        yield from self._gauges()

    def _steps(self) -> Iterator[Any]:
        families, totals = self._families, self._run.totals()
        counts = {"steps": totals.num_steps or None, "samples": totals.num_samples, "tokens": totals.num_tokens}
        for name, count in counts.items():
            if count is not None:
                yield families.CounterMetricFamily(f"whet_{name}", f"Training {name} done", value=count)
        if totals.num_steps:
            at_most = totals.latencies.cumulative(BUCKETS_S)
            buckets = [(str(bound), float(n)) for bound, n in zip(BUCKETS_S, at_most, strict=True)]
            buckets.append(("+Inf", float(totals.num_steps)))
            yield families.HistogramMetricFamily(
                "whet_step_duration_seconds", "Time of a step", buckets=buckets, sum_value=totals.latencies.total_s
            )
        if totals.phases_s:
            family = families.CounterMetricFamily("whet_phase_seconds", "Time in a phase of the step", labels=["phase"])
            for phase, seconds in totals.phases_s.items():
                family.add_metric([phase], seconds)
            yield family

    def _ranks(self) -> Iterator[Any]:
        """Yield what each rank has done, labelled by rank and host, where several processes train together."""
        families, sums = self._families, self._run.ranks.sums()
        for key, name, text in _OF_RANKS:
            values = [(one, getattr(one, key)) for one in sums]
            family = families.GaugeMetricFamily if key == "rss_bytes" else families.CounterMetricFamily
            metric = family(name, text, labels=["rank", "host"])
            for one, value in values:
                if value is not None:
                    metric.add_metric([str(one.rank), one.host], value)
            if metric.samples:
                yield metric
        if rows := self._run.ranks.rows():
            late = families.GaugeMetricFamily(
                "whet_rank_is_straggler", "1 if others wait for it", labels=["rank", "host"]
            )
            for row in rows:
                late.add_metric([str(row.rank), row.host], float(row.is_straggler))
            yield late

    def _gauges(self) -> Iterator[Any]:
        cells = self._run.latest()
        for key, (name, text, factor) in _GAUGES.items():
            if key in cells:
                yield self._families.GaugeMetricFamily(name, text, value=cells[key].mean * factor)
            numbered = {k.partition(":")[2]: cell for k, cell in cells.items() if k.startswith(f"{key}:")}
            if numbered:
                family = self._families.GaugeMetricFamily(name, text, labels=["gpu"])
                for number, cell in numbered.items():
                    family.add_metric([number], cell.mean * factor)
                yield family
