"""Show what a recorded trace says, or what changed between two: whet profile --trace FILE."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from whet.errors import OptionError
from whet.profiling.trace.changes import Change, Changed, Figure, TraceChanges
from whet.profiling.trace.gpu import DeviceTime, DeviceUse, Use, short_name
from whet.profiling.trace.launches import Launches
from whet.profiling.trace.notebook import counted, figure_value
from whet.profiling.trace.operators import OperatorTime
from whet.profiling.trace.profile_trace import profile_trace
from whet.profiling.trace.report import TraceReport
from whet.profiling.trace.steps import StepTime
from whet.ui.figures import DASH, num_bytes, one_line, percent
from whet.ui.figures import nanoseconds as time
from whet.ui.terminal_tables import plain_table

_KERNELS, _OPERATORS, _CALLS, _STEPS, _THREADS, _CHANGES = 10, 12, 5, 8, 4, 12  # rows shown; --json holds all
_CHANGE_STYLES = {Change.ADDED: "yellow", Change.REMOVED: "dim", Change.SLOWER: "red", Change.FASTER: "green"}

Row = tuple[str | Text, ...]


@dataclass(frozen=True)
class _Section:
    """Hold a table. `title` heads the names, `columns` the rest; `num_all` counts all rows if `rows` has only some."""

    title: str
    columns: tuple[str, ...]
    rows: list[Row]
    num_all: int = 0


def run_trace(paths: list[Path], *, as_json: bool) -> None:
    """Show one trace, or what changed from the first to the second. Times in JSON, which is printed alone, are in ns.

    Raises:
        TraceError: A file cannot be read.
    """
    if len(paths) not in (1, 2):
        raise OptionError(f"{len(paths)} traces were given; name one, or two to see what changed")
    with Console(stderr=True).status("reading"):
        found = profile_trace(paths[0]) if len(paths) == 1 else profile_trace(paths[0], paths[1])
    if as_json:
        print(json.dumps(found.summary()))
    elif isinstance(found, TraceReport):
        show_trace(Console(), found)
    else:
        show_changes(Console(), found)


def show_trace(console: Console, report: TraceReport) -> None:
    """Show the verdict, then the figures behind it, within 80 columns."""
    console.print(Text(f"{one_line(report.path)}: {_contents(report)}", "dim"))
    console.print()
    console.print(Text.assemble((str(report.verdict.bound), "bold"), "  ", one_line(report.verdict.sentence)))
    console.print(Text.assemble(("what helps  ", "dim"), report.verdict.advice))
    _show_notes(console, "note", report)
    for section in _sections(report):
        _show(console, section)


def show_changes(console: Console, changes: TraceChanges) -> None:
    for word, report in (("before", changes.before), ("after", changes.after)):
        console.print(Text(f"{word:<7} {one_line(report.path)}: {_contents(report)}", "dim"))
    console.print()
    console.print(Text(one_line(changes.sentence), "bold"))
    _show_notes(console, "note (before)", changes.before)
    _show_notes(console, "note (after)", changes.after)
    unit = "per step" if changes.per_step else "in all"
    rows: list[Row] = [
        (figure.name, figure_value(figure, figure.before), figure_value(figure, figure.after), _difference(figure))
        for figure in changes.figures
    ]
    _show(console, _Section(f"figures, {unit}", ("before", "after", "change"), rows))
    for what, found in (("kernels and copies", changes.kernels), ("operators, self time", changes.operators)):
        changed = [entry for entry in found if entry.change is not Change.SAME]
        if changed:
            rows = [_changed(entry) for entry in changed[:_CHANGES]]
            _show(console, _Section(f"{what}, {unit}", ("", "before", "after", "change", "calls"), rows, len(changed)))
        elif found:
            console.print(Text(f"\n{what}: none of {len(found):,} changed by more than 5%", "dim"))
    console.print(Text("\none recording of each: differences of a few percent can be chance", "dim"))


def _show(console: Console, section: _Section) -> None:
    """Print a table in which the names give way to the figures where there is too little room."""
    table = plain_table()
    columns = [max(cell_len(str(cell)) for cell in column) for column in zip(*_even(section), strict=True)]
    room = max(20, console.width - sum(columns[1:]) - 2 * len(section.columns))
    table.add_column(Text(section.title, "bold"), max_width=room, no_wrap=True, overflow="ellipsis")
    for name, width in zip(section.columns, columns[1:], strict=True):
        table.add_column(name, justify="right", min_width=width, no_wrap=True)
    for row in section.rows:
        table.add_row(*row)
    console.print()
    console.print(table)
    if section.num_all > len(section.rows):
        console.print(Text(f"and {section.num_all - len(section.rows):,} more: --json holds all", "dim"))


def _even(section: _Section) -> Iterator[Row]:
    """Yield the head and all rows, padded to one length."""
    for row in ((section.title, *section.columns), *section.rows):
        yield (*row, *[""] * (1 + len(section.columns) - len(row)))


def _show_notes(console: Console, word: str, report: TraceReport) -> None:
    for note in report.notes:
        console.print(Text.assemble((f"{word}  ", "yellow"), one_line(note)))


def _contents(report: TraceReport) -> str:
    parts = [f"{report.num_events:,} events"]
    if report.steps:
        parts.append(f"{len(report.steps):,} step{'s' * (len(report.steps) != 1)}")
    if report.rank is not None:
        parts.append(f"rank {report.rank}" + (f" of {report.world_size}" if report.world_size is not None else ""))
    return ", ".join(parts)


def _sections(report: TraceReport) -> Iterator[_Section]:
    gpu = bool(report.devices)
    what = "the steps" if report.window_is_steps else "the recorded time"
    shares: list[Row] = [(str(entry.entry), time(entry.time_ns), percent(entry.share)) for entry in report.account]
    yield _Section(f"where {what} went ({time(report.window_ns)})", ("time", "share"), shares)
    yield _use(report)
    if any(kernel.use is not Use.COPY for kernel in report.kernels):
        yield _kernels([kernel for kernel in report.kernels if kernel.use is not Use.COPY])
    copies = [kernel for kernel in report.kernels if kernel.use is Use.COPY]
    if copies:
        rows = [_copy(copy) for copy in copies[:_KERNELS]]
        yield _Section("copies and fills", ("runs", "total", "moved", "rate"), rows, len(copies))
    if report.launches is not None:
        yield _Section("launches", ("count", "total", "median", "longest"), list(_launches(report.launches)))
    if report.operators:
        columns = ("calls", "self", "total", *(("on GPU",) if gpu else ()))
        rows = [_operator(operator, gpu=gpu) for operator in report.operators[:_OPERATORS]]
        yield _Section("slowest operators", columns, rows, len(report.operators))
    if report.steps:
        columns = ("time", *(("GPU busy", "launches") if gpu else ()), "waits for data")
        yield _Section("steps", columns, [_step(s, gpu=gpu) for s in report.steps[:_STEPS]], len(report.steps))


def _use(report: TraceReport) -> _Section:
    rows: list[Row] = []
    for gpu in report.devices:
        name = f"GPU {one_line(gpu.device)}" + (f", {one_line(gpu.name)}" if gpu.name else "")
        streams = f" ({gpu.num_streams} streams)" if gpu.num_streams > 1 else ""
        rows.append((f"{name}{streams}", percent(gpu.busy_ns / gpu.window_ns), percent(gpu.idle_ns / gpu.window_ns)))
        rows += _parts(gpu)
    window_ns, waits = report.window_ns, any(use.waiting_ns for use in report.threads)
    cpu = report.cpu_busy_ns / window_ns
    rows.append(("CPU, any thread", percent(cpu), percent(1 - cpu)))
    for use in report.threads[:_THREADS]:
        idle = 1 - (use.busy_ns + use.waiting_ns) / window_ns
        cells = [percent(use.busy_ns / window_ns), percent(idle)]
        if waits:
            cells.append(percent(use.waiting_ns / window_ns))
        rows.append((Text(f"  thread {one_line(use.thread)} of process {one_line(use.process)}", "dim"), *cells))
    num_hidden = max(0, len(report.threads) - _THREADS)
    columns = ("busy", "idle", *(("waits for GPU",) if waits else ()))
    return _Section("busy and idle", columns, rows, len(rows) + num_hidden if num_hidden else 0)


def _parts(gpu: DeviceUse) -> Iterator[Row]:
    """Yield the rows of what a GPU did, and how much of it computation hid."""
    for name, time_ns, hidden_ns in (
        ("compute", gpu.compute_ns, None),
        ("communication", gpu.communication_ns, gpu.communication_hidden_ns),
        ("copies and fills", gpu.copy_ns, gpu.copy_hidden_ns),
    ):
        if time_ns:
            hidden = "" if hidden_ns is None else f" ({percent(hidden_ns / time_ns)} of it beside compute)"
            yield Text(f"  {name}{hidden}", "dim"), percent(time_ns / gpu.window_ns)


def _kernels(kernels: Sequence[DeviceTime]) -> _Section:
    total_ns = max(1, sum(kernel.total_ns for kernel in kernels))
    communication_ns = sum(kernel.total_ns for kernel in kernels if kernel.use is Use.COMMUNICATION)
    rows: list[Row] = [
        (
            Text(one_line(short_name(kernel.name)), "cyan" if kernel.use is Use.COMMUNICATION else ""),
            f"{kernel.calls:,}",
            time(kernel.total_ns),
            time(kernel.total_ns / kernel.calls),
            percent(kernel.total_ns / total_ns),
        )
        for kernel in kernels[:_KERNELS]
    ]
    share = f" ({percent(communication_ns / total_ns)} communication)" if communication_ns else ""
    return _Section(f"slowest kernels{share}", ("runs", "total", "mean", "share"), rows, len(kernels))


def _copy(copy: DeviceTime) -> Row:
    rate = DASH if copy.bytes_per_s is None else f"{num_bytes(copy.bytes_per_s)}/s"
    moved = DASH if copy.num_bytes is None else num_bytes(copy.num_bytes)
    return one_line(copy.name), f"{copy.calls:,}", time(copy.total_ns), moved, rate


def _launches(found: Launches) -> Iterator[Row]:
    cost = (time(found.call_total_ns), _time(found.call_median_ns), _time(found.call_longest_ns))
    yield "calls that launch kernels", f"{found.num_calls:,}", *cost
    delays = (DASH, _time(found.delay_median_ns), _time(found.delay_longest_ns))
    yield "from the call to the kernel's start", f"{found.num_matched:,}", *delays
    yield "kernels shorter than their launch", f"{found.num_short:,}"
    if found.num_waits:
        yield "calls that wait for the GPU", f"{found.num_waits:,}", time(found.wait_total_ns)
    for call in found.runtime[:_CALLS]:
        times = (time(call.total_ns), time(call.median_ns), time(call.longest_ns))
        yield Text(f"  {one_line(call.name)}", "dim"), f"{call.calls:,}", *times


def _operator(operator: OperatorTime, *, gpu: bool) -> Row:
    on_gpu = (time(operator.gpu_total_ns) if operator.gpu_total_ns else DASH,) if gpu else ()
    return one_line(operator.name), f"{operator.calls:,}", time(operator.self_ns), time(operator.total_ns), *on_gpu


def _step(step: StepTime, *, gpu: bool) -> Row:
    whole_ns = max(1, step.duration_ns)
    busy = (percent((step.gpu_busy_ns or 0) / whole_ns), f"{step.num_launches:,}") if gpu else ()
    name = f"{step.number}" + (" (cut)" if step.is_cut else "")
    return name, time(step.duration_ns), *busy, percent(step.data_wait_ns / whole_ns)


def _changed(entry: Changed) -> Row:
    before = DASH if entry.change is Change.ADDED else time(entry.before_ns)
    after = DASH if entry.change is Change.REMOVED else time(entry.after_ns)
    calls = counted(entry.before_calls)
    if abs(entry.before_calls - entry.after_calls) > 1e-9:
        calls = f"{calls}→{counted(entry.after_calls)}"
    change = Text(str(entry.change), _CHANGE_STYLES[entry.change])
    return one_line(short_name(entry.name)), change, before, after, _signed(entry.difference_ns), calls


def _difference(figure: Figure) -> str:
    if figure.before is None or figure.after is None:
        return DASH
    difference = figure.after - figure.before
    if figure.unit == "ns":
        return _signed(difference)
    sign = "+" if difference > 0 else "−" if difference < 0 else ""
    if figure.unit == "share":
        return f"{sign}{abs(difference) * 100:.1f} points"
    return f"{sign}{counted(abs(difference))}"


def _signed(time_ns: float) -> str:
    return f"+{time(time_ns)}" if time_ns > 0 else time(time_ns)


def _time(time_ns: int | None) -> str:
    return DASH if time_ns is None else time(time_ns)
