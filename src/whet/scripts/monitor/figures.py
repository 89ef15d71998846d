"""Format a summary's figures for people: three digits with a unit, and a dash for a figure that was not measured."""

from whet.scripts.monitor import metrics
from whet.scripts.monitor.ranks import RankRow
from whet.scripts.monitor.summary import Gpu, Summary
from whet.ui import figures
from whet.ui.figures import DASH, digits, milliseconds, percent

NOT_HERE = "not available here"

_BYTES = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))


def table(summary: Summary) -> list[tuple[str, str]]:
    """Return pairs of name and figure, the most important first. A figure that could not be measured says why."""
    rows = [("duration", duration(summary.duration_s))]
    rows += _step_rows(summary)
    rows += [(f"rank {row.rank}", _rank(row)) for row in summary.ranks]
    if summary.straggler:
        rows.append(("straggler", summary.straggler))
    cores = f"{summary.num_cores} core{'s' if summary.num_cores != 1 else ''}"
    rows.append(("CPU, this run", f"{percent(summary.cpu)} of {cores}, at most {percent(summary.peak_cpu)}"))
    rows.append(("CPU, whole machine", percent(summary.machine_cpu)))
    rows.append(("memory, peak", num_bytes(summary.peak_rss_bytes)))
    for gpu in summary.gpus:
        rows += _gpu_rows(gpu)
    rows += [(name, f"{NOT_HERE}: {why}") for name, why in summary.unavailable.items()]
    return rows


def status(summary: Summary, *, running: bool) -> tuple[str, str]:
    """Return the run's status in a word, and whether it is "good", "bad" or neither ("quiet")."""
    if running:
        return "running", "good"
    if summary.is_partial:
        return "failed" if summary.exit_code is None else f"exit code {summary.exit_code}", "bad"
    return "ended", "quiet"


def cut_short(summary: Summary) -> str:
    """Return what to say of a run that failed; "" for one that did not."""
    if not summary.is_partial:
        return ""
    return f"{summary.message or 'The run failed'}. The figures are partial: they cover the run until then."


def _step_rows(summary: Summary) -> list[tuple[str, str]]:
    latency = summary.latency
    if latency is None:
        return []
    p99 = f" · P99 {milliseconds(latency.p99_ms)}" if latency.p99_ms is not None else ""
    rows = [
        ("steps", f"{summary.num_steps:,}, {rate(summary.steps_per_s)}"),
        ("step latency", f"P50 {milliseconds(latency.p50_ms)} · P90 {milliseconds(latency.p90_ms)}{p99}"),
        ("longest step", milliseconds(latency.longest_ms)),
    ]
    for name, count, per_s in (
        ("samples", summary.num_samples, summary.samples_per_s),
        ("tokens", summary.num_tokens, summary.tokens_per_s),
    ):
        if count is not None:
            rows.append((name, f"{count:,}, {rate(per_s)}"))
    if summary.data_wait is not None:
        rows.append(("data wait", f"{percent(summary.data_wait)} of the step time"))
    others = [name for name in metrics.PHASES if name in summary.phases and name != metrics.DATA_WAIT]
    if others:
        parts = [f"{metrics.PHASES[name]} {percent(summary.phases[name])}" for name in others]
        rows.append(("other phases", " · ".join(parts)))
    return rows


def _rank(row: RankRow) -> str:
    own = "" if row.own_ms is None else f", {milliseconds(row.own_ms)} of its own, {percent(row.waits)} waiting"
    return f"{row.host}: step {milliseconds(row.step_ms)}{own}, memory {num_bytes(row.rss_bytes)}"


def _gpu_rows(gpu: Gpu) -> list[tuple[str, str]]:
    name = f"GPU {gpu.number}"
    rows = []
    if gpu.utilisation is not None:
        rows.append((name, f"{percent(gpu.utilisation)} of the time{f', {gpu.name}' if gpu.name else ''}"))
    if gpu.peak_bytes is not None:
        rows.append((f"{name} memory, peak", num_bytes(gpu.peak_bytes)))
    if gpu.peak_reserved_bytes is not None:
        held = f"{num_bytes(gpu.peak_reserved_bytes)} reserved, {num_bytes(gpu.peak_allocated_bytes)} held by tensors"
        rows.append((f"{name} PyTorch, peak", held))
        worst = f", at most {percent(gpu.peak_fragmentation)}"
        rows.append((f"{name} fragmentation", f"{percent(gpu.fragmentation)} of the reserved memory{worst}"))
    return rows


def num_bytes(value: float | None) -> str:
    """Format bytes in GiB, MiB, KiB or B."""
    return figures.in_unit(value, _BYTES)


def rate(value: float | None) -> str:
    return DASH if value is None else f"{digits(value)} per second"


def duration(seconds: float) -> str:
    """Format seconds in at most two units: 9.3 s, 2 min 3 s, 1 h 5 min, 2 d 3 h."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    for name, size, next_name, next_size in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size} {name} {whole % size // next_size} {next_name}"
    return f"{whole} s"
