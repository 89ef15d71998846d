"""Show a benchmark on a terminal of 80 columns."""

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from whet.core.slo import Slo
from whet.server.load_test.figures import Figures, Percentiles
from whet.server.load_test.report import Report
from whet.ui.figures import DASH, digits, duration, percent
from whet.ui.terminal_tables import plain_table

LATENCIES = ("P50", "P90", "P99", "mean", "longest", "samples")


def show_report(console: Console, report: Report) -> None:
    console.print()
    console.print(Text.assemble(("whet bench-serve  ", "bold"), report.model, ("  at ", "dim"), report.url))
    console.print(Text(sent(report)))
    if report.load is not None and report.capacity is not None:
        console.print(
            Text(
                f"load {report.load:g}: the server can do {digits(report.capacity.requests_per_s)} of these requests/s "
                f"({digits(report.capacity.output_tokens_per_s)} output tokens/s)"
            )
        )
    console.print()
    console.print(_latencies(report.figures))
    console.print()
    grid = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value, style in rows(report):
        grid.add_row(Text(name), Text(value, style))
    console.print(grid)
    if report.busy:
        console.print(Text(f"The machine was busy: {report.busy}. These figures cannot be trusted.", "yellow"))
    for note in report.notes:
        console.print(Text(f"note: {note}"))


def sent(report: Report) -> str:
    """Return what was sent to the server, in words."""
    loop = "open loop" if report.max_in_flight is None else f"at most {report.max_in_flight} in flight"
    parts = [f"{report.num_planned:,} requests, {report.source}"]
    if report.offered_per_s is not None:
        parts.append(f"{digits(report.offered_per_s)}/s, {loop}")
    if report.length_scale != 1.0:
        parts.append(f"lengths × {digits(report.length_scale)}")
    if report.time_scale is not None and report.time_scale != 1.0:
        parts.append(f"gaps × {digits(report.time_scale)}")
    if report.shared_prefix:
        parts.append(f"the first {report.shared_prefix} tokens shared")
    return "; ".join(parts)


def _latencies(figures: Figures) -> Table:
    table = plain_table(gap=2)
    table.add_column("latency")
    for name in LATENCIES:
        table.add_column(name, justify="right")
    for row in latency_rows(figures):
        table.add_row(*row)
    return table


def latency_rows(figures: Figures) -> list[list[str]]:
    """Return a row for each kind of latency: its name, and the figures in the order of LATENCIES."""
    kinds = {"TTFT": figures.ttft, "TPOT": figures.tpot, "ITL": figures.itl, "E2E": figures.e2e}
    return [[name, *_cells(found)] for name, found in kinds.items()]


def _cells(found: Percentiles | None) -> list[str]:
    if found is None:
        return [DASH] * 6
    like = found.p90_ms / 1e3
    times_ms = (found.p50_ms, found.p90_ms, found.p99_ms, found.mean_ms, found.longest_ms)
    return [*(duration(None if ms is None else ms / 1e3, like=like) for ms in times_ms), f"{found.num_samples:,}"]


def rows(report: Report) -> Iterator[tuple[str, str, str]]:
    """Yield name, value and style of each line below the table."""
    figures = report.figures
    yield (
        "answered",
        f"{figures.num_answered:,} of {figures.num_requests:,} requests in {duration(figures.duration_s)}: "
        f"{digits(figures.requests_per_s)}/s",
        "",
    )
    yield "output", f"{digits(figures.output_tokens_per_s)} tokens/s ({figures.output_tokens:,} tokens)", ""
    yield "input", f"{digits(figures.input_tokens_per_s)} tokens/s ({figures.input_tokens:,} tokens)", ""
    if figures.goodput is not None and report.slo is not None:
        good = figures.goodput
        share, rate = percent(good.share, decimals=1), digits(good.requests_per_s)
        yield "goodput", f"{share}, {rate} requests/s, within {_limits(report.slo)}", ""
    known = "not known: no such counters at /metrics" if report.prefix_hit_rate is None else ""
    yield "prefix hits", known or f"{percent(report.prefix_hit_rate, decimals=1)} of the prompt tokens looked up", ""
    for failure, count in figures.failures.items():
        detail = figures.failure_details.get(failure, "")
        yield "failed", f"{count:,} × {failure}{f' ({detail})' if detail else ''}", "red"
    if figures.lateness is not None:
        what = "sent late" if report.max_in_flight is None else "waited for a turn"
        late = figures.lateness
        yield what, f"{duration(late.longest_ms / 1e3)} at most, P50 {duration(late.p50_ms / 1e3)}", ""


def _limits(slo: Slo) -> str:
    limits = {"TTFT": slo.ttft_s, "TPOT": slo.tpot_s, "E2E": slo.e2e_s}
    return ", ".join(f"{name} ≤ {duration(limit)}" for name, limit in limits.items() if limit is not None)
