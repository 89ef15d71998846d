"""Hold everything that whet reads out of one trace."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from whet.profiling.trace.account import Share, account
from whet.profiling.trace.gpu import DeviceTime, DeviceUse, device_intervals, device_times, device_use, total_of
from whet.profiling.trace.intervals import Intervals, union
from whet.profiling.trace.launches import Launches, launches, waiting
from whet.profiling.trace.operators import OperatorTime, operator_times
from whet.profiling.trace.steps import StepTime, step_times, window_of
from whet.profiling.trace.trace import ON_DEVICE, Kind, Trace, read_trace
from whet.profiling.trace.verdict import TraceVerdict, judge
from whet.ui.figures import nanoseconds, percent
from whet.ui.notebook import Shown

FORMAT = 1


@dataclass(frozen=True)
class ThreadUse:
    """Describe the use of one CPU thread within the window.

    Attributes:
        busy_ns: Time in operators and runtime calls, without waiting.
        waiting_ns: Time in calls that wait for the GPU.
    """

    process: str
    thread: str
    busy_ns: int
    waiting_ns: int


@dataclass(frozen=True)
class TraceReport(Shown):
    """Hold the analysis of one trace. All times are in nanoseconds.

    Attributes:
        window_ns: The length of the window to which busy times, shares and overlap refer.
        window_is_steps: Whether the window is the profiler's steps. Otherwise it is everything that was recorded.
        account: The parts of the window, largest first.
        devices: The use of each GPU, the busiest first.
        cpu_busy_ns: How long any thread was in an operator or runtime call and was not waiting for the GPU.
        threads: The use of each CPU thread, the busiest first.
        kernels: All kernels, copies and fills by name, over the whole trace.
        launches: What launching kernels cost, over the whole trace; None if it has no kernels, launches or waits.
        operators: All operators by name, over the whole trace.
        annotations: All annotations by name, over the whole trace.
        rank: The rank of the process in a distributed run of `world_size` ranks, if the trace says so.
    """

    path: str
    verdict: TraceVerdict
    window_ns: int
    window_is_steps: bool
    account: tuple[Share, ...]
    devices: tuple[DeviceUse, ...]
    cpu_busy_ns: int
    threads: tuple[ThreadUse, ...]
    kernels: tuple[DeviceTime, ...]
    launches: Launches | None
    operators: tuple[OperatorTime, ...]
    annotations: tuple[OperatorTime, ...]
    steps: tuple[StepTime, ...]
    num_events: int
    rank: int | None
    world_size: int | None
    notes: tuple[str, ...]

    def whole_steps(self) -> tuple[StepTime, ...]:
        """Return the steps that were recorded to their end."""
        return tuple(step for step in self.steps if not step.is_cut)

    def summary(self) -> dict[str, Any]:
        """Return the report as a JSON-serialisable dict, with all times in nanoseconds."""
        return {"format": FORMAT, **asdict(self)}


def analyse_file(path: Path | str) -> TraceReport:
    """Read a trace file and analyse it.

    Raises:
        TraceError: The file is damaged, or PyTorch did not write it.
    """
    return analyse(read_trace(path))


def analyse(trace: Trace) -> TraceReport:
    window = window_of(trace)
    used = device_intervals(trace, window)
    devices = tuple(device_use(trace, device, window) for device in used)
    shares = account(trace, window, used[0] if used else None)
    found = launches(trace)
    kernels, operators = device_times(trace), operator_times(trace)
    steps = step_times(trace, total_of(used) if used else None)
    cpu_busy_ns, threads = _threads(trace, window)
    return TraceReport(
        path=str(trace.path),
        verdict=judge(shares, window.length_ns, devices[0] if devices else None, found, kernels, operators),
        window_ns=window.length_ns,
        window_is_steps=bool(steps),
        account=shares,
        devices=devices,
        cpu_busy_ns=cpu_busy_ns,
        threads=threads,
        kernels=kernels,
        launches=found,
        operators=operators,
        annotations=operator_times(trace, Kind.ANNOTATION),
        steps=steps,
        num_events=trace.num_seen,
        rank=trace.rank,
        world_size=trace.world_size,
        notes=tuple(_notes(trace, found, devices, steps)),
    )


def _threads(trace: Trace, window: Intervals) -> tuple[int, tuple[ThreadUse, ...]]:
    """Return how long any thread was busy, and the use of each thread, the busiest first."""
    calls, waits = trace.events.of(Kind.OPERATOR, Kind.RUNTIME), waiting(trace)
    anywhere = []
    threads = []
    for lane in np.unique(calls.lane):
        mine, idle = calls[calls.lane == lane], waits[waits.lane == lane]
        waited = union(idle.start_ns, idle.end_ns) & window
        busy = (union(mine.start_ns, mine.end_ns) & window) - waited
        anywhere.append(busy)
        where = trace.lanes[lane]
        threads.append(ThreadUse(where.process, where.thread, busy.length_ns, waited.length_ns))
    if not anywhere:
        return 0, ()
    all_busy = union(
        np.concatenate([busy.starts_ns for busy in anywhere]), np.concatenate([busy.ends_ns for busy in anywhere])
    )
    return all_busy.length_ns, tuple(sorted(threads, key=lambda use: -use.busy_ns))


def _notes(trace: Trace, found: Launches | None, devices: Sequence[DeviceUse], steps: Sequence[StepTime]) -> list[str]:
    notes = []
    num_counted = len(trace.events.of(Kind.COUNTED))
    if num_counted:
        notes.append(f"{num_counted:,} kernels are CUPTI counter ranges, which have no true times; they are left out")
    if trace.num_damaged:
        notes.append(f"{trace.num_damaged:,} events have no name or no usable times; they are left out")
    if trace.num_python:
        notes.append(
            f"the trace was recorded with Python stacks ({trace.num_python:,} calls), which slow the CPU: launches "
            "cost less than it shows"
        )
    overhead = trace.events.of(Kind.OVERHEAD)
    if len(overhead):
        notes.append(f"the profiler itself took {nanoseconds(union(overhead.start_ns, overhead.end_ns).length_ns)}")
    if found is not None:
        notes += _launch_notes(trace, found)
    if len(devices) > 1:
        notes.append(f"there are {len(devices)} devices; the verdict is on the busiest, device {devices[0].device}")
    if steps and steps[-1].is_cut:
        notes.append(f"step {steps[-1].number} was cut by the end of the recording")
    return notes


def _launch_notes(trace: Trace, found: Launches) -> list[str]:
    notes = []
    longest_ns = found.call_longest_ns or 0
    if found.num_calls > 1 and longest_ns > 0.5 * found.call_total_ns and longest_ns > 1_000_000:
        notes.append(
            f"one launch took {nanoseconds(longest_ns)} of the {nanoseconds(found.call_total_ns)} of all launches, "
            "because a first call often loads code: record after a warm-up"
        )
    unmatched = found.num_kernels - found.num_matched
    if unmatched and found.num_calls:
        share = percent(unmatched / found.num_kernels)
        notes.append(f"{unmatched:,} kernels ({share}) have no launch in the trace, so only a part of it was kept")
    if found.num_early:
        notes.append(f"{found.num_early:,} kernels start before their launch: the clocks of CPU and GPU disagree")
    if not len(trace.events.of(*ON_DEVICE)) and found.num_calls and not len(trace.events.of(Kind.COUNTED)):
        notes.append("kernels were launched, but the trace holds no GPU events")
    return notes
