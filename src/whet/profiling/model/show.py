"""Show a report on a terminal: the verdict in words, then tables that fit 80 columns."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.table import Table
from rich.text import Text

from whet.profiling.model.operators import OperatorCost
from whet.profiling.model.report import Latency, LayerLine, Report
from whet.profiling.model.sections import SectionCost
from whet.ui.figures import DASH, bytes_change, digits, duration, num_bytes, one_line, operations, percent
from whet.ui.terminal_tables import plain_table

_MANY_SECTIONS = 24
_LEAST_SHARE = 0.01  # if there are many sections, those with a smaller share of the time are left out
_WIDE = 100  # on a terminal with so many columns, nothing needs to be left out
_LAYER_FIGURES = 58  # columns that a layer's row needs in addition to its name
_SHARE = 7  # columns for a layer's share of the time
_SUMMED = ("calls", "total_s", "self_s", "cpu_s", "self_cpu_s", "grown_bytes")  # of sections that are folded
_BARS = "▁▂▃▄▅▆▇█"
_MOST_BARS = 60


def show_report(console: Console, report: Report, *, rows: int = 12) -> None:
    """Print what was measured, with at most `rows` layers and operators; what was not measured is left out."""
    console.print()
    _show_verdict(console, report)
    _show_sections(console, report)
    _show_timers(console, report)
    _show_layers(console, report, rows)
    _show_operators(console, report, rows)
    _show_memory(console, report)
    _show_largest(console, report)
    _show_leaks(console, report)
    for note in report.notes:
        console.print(Text(f"note: {note}", "dim"))
    for command in report.commands:
        console.print(Text("go deeper: ", "dim") + Text(command), overflow="fold")


def _show_verdict(console: Console, report: Report) -> None:
    if report.partial:
        console.print(Text.assemble(("PARTIAL  ", "bold red"), one_line(report.partial)))
    if report.busy:
        console.print(Text(f"The machine was busy: {report.busy}. Times may be too long.", "yellow"))
        if report.verdict is None and not report.partial:
            console.print(Text("NO VERDICT on what bounds the model; profile it on a quiet machine.", "bold yellow"))
    if report.verdict is not None:
        head = Text(report.verdict.bound.upper(), "bold")
        if report.verdict.share_of_limit is not None:
            head.append(f", at {percent(report.verdict.share_of_limit)} of the machine's limit")
        console.print(head)
        for sentence in report.verdict.sentences:
            console.print(Text(one_line(sentence)))
    latency = report.latency
    if latency is not None:
        p99 = "" if latency.p99_ms is None else f", P99 {duration(latency.p99_ms / 1e3)}"
        console.print(
            f"one call, without instruments  {duration(latency.median_ms / 1e3)}, "
            f"P90 {duration(latency.p90_ms / 1e3)}{p99}; {speed(latency)}",
            highlight=False,
        )
    elif report.wall_s:
        steps = (
            f"; {report.num_steps} steps of {duration(report.wall_s / report.num_steps)}" if report.num_steps else ""
        )
        console.print(f"whole block  {duration(report.wall_s)}{steps}", highlight=False)


def speed(latency: Latency) -> str:
    return f"{digits(latency.throughput)} samples/s; {latency.num_calls:,} calls; {latency.cores:.1f} cores busy"


def _show_sections(console: Console, report: Report) -> None:
    if not report.sections:
        return
    has_gpu = any(section.gpu_s is not None for section in report.sections)
    table = plain_table(["section"], ["calls", "total", "self", "busy", *(["gpu"] if has_gpu else [])])
    table.add_column("kept" if report.latency else "grown", justify="right", no_wrap=True)
    table.add_column("peak", justify="right", no_wrap=True)
    folded = folded_sections(report.sections)
    least_s = _LEAST_SHARE * _outermost_s(report.sections) if len(folded) > _MANY_SECTIONS else 0.0
    shown = [section for section in folded if section.total_s >= least_s]
    for section in shown:
        name = Text("  " * (section.depth - 1) + one_line(section.name), overflow="ellipsis", no_wrap=True)
        if section.thread:
            name.append(f" ({one_line(section.thread)})", "dim")
        gpu = [duration(section.gpu_s)] if has_gpu else []
        memory = (bytes_change(section.grown_bytes), num_bytes(section.peak_bytes or None))
        table.add_row(name, *section_cells(section), *gpu, *memory)
    _print(console, "sections", table)
    if len(shown) < len(folded):
        left = len(folded) - len(shown)
        console.print(
            Text(f"and {left} sections with less than {percent(_LEAST_SHARE, decimals=0)} of the time each", "dim")
        )
    if len({section.thread for section in report.sections}) == 1 and report.wall_s and not report.latency:
        rest_s = report.wall_s - _outermost_s(report.sections)
        console.print(Text(f"outside of all sections: {duration(max(0.0, rest_s))}", "dim"))


def section_cells(section: SectionCost) -> tuple[str, ...]:
    """Return a section's calls, its time, its own time, and the share of its time in which the CPU was busy."""
    busy = percent(min(1.0, section.cpu_s / section.total_s)) if section.total_s else DASH
    return f"{section.calls:,}", duration(section.total_s), duration(section.self_s), busy


def folded_sections(sections: Sequence[SectionCost]) -> list[SectionCost]:
    """Fold the modules of one list, as layers.0 to layers.11, to one section called "layers.* ×12".

    Its times, calls and growth are the sums over these sections, and its peak is the highest of theirs.
    """
    numbered = re.compile(r"(.+)\.\d+")
    members: dict[tuple[str, tuple[str, ...]], set[str]] = {}
    folded: dict[tuple[str, tuple[str, ...]], SectionCost] = {}
    for section in sections:
        path = tuple(f"{found[1]}.*" if (found := numbered.fullmatch(name)) else name for name in section.path)
        key = (section.thread, path)
        members.setdefault(key, set()).add(section.name)
        known = folded.get(key)
        folded[key] = section if known is None else _added(known, section, path)
    return [
        replace(section, path=(*path[:-1], f"{path[-1]} ×{len(members[key])}")) if len(members[key]) > 1 else section
        for key, section in folded.items()
        for path in [section.path]
    ]


def _added(a: SectionCost, b: SectionCost, path: tuple[str, ...]) -> SectionCost:
    return replace(
        a,
        path=path,
        longest_s=max(a.longest_s, b.longest_s),
        gpu_s=None if a.gpu_s is None or b.gpu_s is None else a.gpu_s + b.gpu_s,
        peak_bytes=max(a.peak_bytes, b.peak_bytes),
        **{name: getattr(a, name) + getattr(b, name) for name in _SUMMED},
    )


def _show_timers(console: Console, report: Report) -> None:
    if not report.timers:
        return
    table = plain_table(["timer"], ["calls", "total", "median", "P90", "P99"])
    for timer in report.timers:
        p99 = None if timer.p99_ms is None else timer.p99_ms / 1e3
        table.add_row(
            Text(one_line(timer.name)), f"{timer.calls:,}", duration(timer.total_s), duration(timer.median_ms / 1e3),
            duration(timer.p90_ms / 1e3), duration(p99),
        )  # fmt: skip
    _print(console, "timers", table)


def _show_layers(console: Console, report: Report, rows: int) -> None:
    if not report.layers:
        return
    has_share = console.width >= _WIDE
    name_width = max(12, console.width - _LAYER_FIGURES - _SHARE * has_share)
    table = plain_table()
    table.add_column("layer", no_wrap=True)
    table.add_column("kind", overflow="ellipsis")
    for name in ("time", *(["share"] if has_share else []), "FLOPs", "bytes", "F/B"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("bound", no_wrap=True)
    table.add_column("limit", justify="right", no_wrap=True)
    ranked = sorted(report.layers, key=lambda layer: -layer.time_s)
    whole_s = report.layers_s or 1.0
    for layer in ranked[:rows]:
        name, kind, time, share, *others = layer_cells(layer, whole_s)
        figures = (time, *([share] if has_share else []), *others)
        table.add_row(Text(_tail(name, name_width)), Text(kind, no_wrap=True, overflow="ellipsis"), *map(Text, figures))
    _print(console, "layers, one call", table)
    rest = ranked[rows:]
    if rest:
        console.print(Text(f"and {len(rest)} more layers, {duration(sum(layer.time_s for layer in rest))}", "dim"))
    if report.call_s:
        console.print(
            f"all layers  {duration(report.layers_s)}, {percent(report.layers_s / report.call_s)} of the "
            f"{duration(report.call_s)} of a call in this pass; {operations(report.total_flops or None)}",
            highlight=False,
        )


def layer_cells(layer: LayerLine, whole_s: float) -> tuple[str, ...]:
    """Return a layer's name, kind, time, share of the time of all layers, operations, bytes, intensity and bounds."""
    return (
        one_line(layer.name or "(the model itself)"),
        one_line(layer.kind),
        duration(layer.time_s),
        percent(layer.time_s / whole_s),
        operations(layer.flops or None, short=True),
        num_bytes(layer.num_bytes or None),
        digits(layer.intensity),
        layer.bound.removesuffix("-bound"),
        percent(layer.share_of_limit),
    )


def _show_operators(console: Console, report: Report, rows: int) -> None:
    operators = report.operators
    if operators is None or not operators.costs:
        return
    has_gpu = operators.device_s is not None
    columns = ["calls", "self", "total", *(["gpu"] if has_gpu else []), "share"]
    table = plain_table(["operator", "shapes"], columns)
    for cost in operators.costs[:rows]:
        gpu = [duration(cost.device_self_s)] if has_gpu else []
        table.add_row(
            Text(one_line(cost.name), overflow="ellipsis", no_wrap=True),
            Text(_by(one_line(cost.shapes)), overflow="ellipsis", no_wrap=True),
            *operator_cells(cost),
            *gpu,
            percent(operators.share(cost)),
        )
    _print(console, f"slowest operators, {duration(operators.traced_s)} traced", table)


def operator_cells(cost: OperatorCost) -> tuple[str, ...]:
    return f"{cost.calls:,}", duration(cost.self_s), duration(cost.total_s)


def _show_memory(console: Console, report: Report) -> None:
    memory = report.memory
    if memory is None:
        return
    what = "GPU memory" if memory.device == "cuda" else "resident memory"
    console.print()
    console.print(
        f"{what}  peak {num_bytes(memory.peak_bytes)}; before {num_bytes(memory.start_bytes)}, "
        f"after {num_bytes(memory.end_bytes)}",
        highlight=False,
    )
    if len(memory.points) > 2:
        held = [p.rss_bytes if p.cuda_allocated_bytes is None else p.cuda_allocated_bytes for p in memory.points]
        console.print(_sparkline(held, memory.points[-1].at_s, console.width), highlight=False)
    pieces = report.fragmentation
    if pieces is not None and pieces.reserved_bytes:
        console.print(
            f"CUDA allocator  {num_bytes(pieces.reserved_bytes)} reserved, {num_bytes(pieces.allocated_bytes)} in use; "
            f"largest free block {num_bytes(pieces.largest_free_bytes)}; "
            f"{percent(pieces.fragmented)} of the free memory is outside this block",
            highlight=False,
        )


def _show_largest(console: Console, report: Report) -> None:
    tensors = report.tensors
    if tensors is None:
        return
    console.print(
        f"tensors  peak {num_bytes(tensors.peak_bytes)}; before {num_bytes(tensors.start_bytes)}, "
        f"after {num_bytes(tensors.end_bytes)}",
        highlight=False,
    )
    if report.largest:
        table = plain_table(figures=["size"])
        table.add_column("shape", max_width=26, overflow="ellipsis", no_wrap=True)
        table.add_column("what, and where it was allocated", ratio=1, overflow="fold")
        for live in report.largest[:8]:
            found = live.allocation
            first = "first used at " if found.is_outside and found.line.number else ""
            where = Text(one_line(live.name), "bold") if live.name else Text()
            if not (live.name and found.is_outside):
                where.append(("\n" if live.name else "") + first + one_line(str(found.line)))
            times = f" ×{live.count}" if live.count > 1 else ""
            table.add_row(num_bytes(found.num_bytes), f"{found.dtype}{list(found.shape)}{times}", where)
        _print(console, "largest tensors alive", table)
    if tensors.peak_lines:
        table = plain_table(figures=["size", "tensors"])
        table.add_column("line", ratio=1, overflow="fold")
        for use in tensors.peak_lines[:5]:
            table.add_row(num_bytes(use.num_bytes), f"{use.num_tensors:,}", Text(one_line(str(use.line))))
        _print(console, "held at the peak, by the line that allocated it", table)


def _show_leaks(console: Console, report: Report) -> None:
    if report.leaks is None:
        return
    step = "call" if report.latency else "step"
    for leak in report.leaks:
        console.print(
            Text.assemble((f"GROWS {num_bytes(leak.bytes_per_step)} a {step}  ", "bold red"), one_line(leak.sentence))
        )
        if leak.line.text:
            console.print(Text(f"    {one_line(leak.line.text)}", "dim"))
    if not report.leaks:
        console.print(f"growth  none: no line left tensors behind over {report.num_steps} {step}s", highlight=False)


def _print(console: Console, title: str, table: Table) -> None:
    """Print a table with a title above it. A table's own title would be wrapped to the table's width."""
    console.print()
    console.print(Text(title, "bold"))
    console.print(table)


def _sparkline(values: Sequence[int], seconds: float, width: int) -> str:
    """Draw values as bars, with a legend, no wider than `width`. A bar shows the highest value of its stretch."""
    legend = f"  {num_bytes(min(values))}–{num_bytes(max(values))} in {duration(seconds)}"
    width = max(1, min(_MOST_BARS, width - len(legend)))
    stretch = max(1, math.ceil(len(values) / width))
    highest = [max(values[i : i + stretch]) for i in range(0, len(values), stretch)]
    low, high = min(values), max(values)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in highest) + legend


def _outermost_s(sections: Sequence[SectionCost]) -> float:
    return sum(section.total_s for section in sections if section.depth == 1)


def _by(shapes: str) -> str:
    """Shorten shapes for a narrow column: "[8, 64, 16] [64]" becomes "8×64×16 64"."""
    return re.sub(r"\[([\d, ]*)\]", lambda found: found[1].replace(", ", "×") or "scalar", shapes)


def _tail(text: str, width: int) -> str:
    """Return the end of a long name, because the ends tell layers apart."""
    return text if len(text) <= width else "…" + text[-(width - 1) :]
