"""Divide the time of a trace's window into entries that add up to the whole window.

With a GPU, the entries say what it did and, while it was idle, what the CPU did; without one, what the CPU did.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from whet.profiling.trace.gpu import DeviceIntervals
from whet.profiling.trace.intervals import EMPTY, Intervals, union
from whet.profiling.trace.launches import launch_of, launching_lanes
from whet.profiling.trace.steps import data_waits
from whet.profiling.trace.trace import NONE, ON_DEVICE, Kind, Trace

_LATENCY_NS = 50_000  # the longest time from a launch to its kernel if nothing delays it; usually 5 to 20 µs
_COLLECTIVE = r"(?:gloo|mpi|ucc|xccl|ccl):"  # annotations of collectives that run on the CPU
_WAITING = r"(?:c10d|_c10d_functional|_dtensor)::"  # operators that return when their collective has, or wait for it
_AROUND = r"autograd::engine::evaluate_function"  # also holds the hooks of a backward, which may wait


class TimeCategory(StrEnum):
    """Name what a moment of the window went into."""

    KERNELS = "GPU computes"
    COMMUNICATION = "communication, nothing else runs"
    COPIES = "copies, nothing else runs"
    DATA = "waits for the next batch"
    LAUNCHING = "GPU idle, CPU calls operators"
    ARRIVING = "GPU idle, a launch is on its way"
    STALLED = "GPU idle, launched work does not begin"
    OUTSIDE = "no operator runs: Python, other code"
    OPERATORS = "CPU runs operators"


@dataclass(frozen=True)
class Share:
    """Describe one entry of the account. `share` is its share of the window, 0 to 1."""

    entry: TimeCategory
    time_ns: int
    share: float


def account(trace: Trace, window: Intervals, used: DeviceIntervals | None) -> tuple[Share, ...]:
    """Divide the window into the categories that occur, largest first, of the device `used`, or of the CPU if None."""
    entries = _of_device(trace, window, used) if used is not None else _of_cpu(trace, window)
    whole_ns = window.length_ns
    shares = [Share(entry, part.length_ns, part.length_ns / whole_ns) for entry, part in entries.items() if len(part)]
    return tuple(sorted(shares, key=lambda share: -share.time_ns))


def _of_device(trace: Trace, window: Intervals, used: DeviceIntervals) -> dict[TimeCategory, Intervals]:
    gaps = window - used.busy
    arriving, stalled = _launched(trace, used.device, gaps)
    waited = gaps - arriving - stalled  # the device waits for the CPU
    lanes = launching_lanes(trace)
    calls = trace.events.of(Kind.OPERATOR, Kind.RUNTIME)
    calls = calls[np.isin(calls.lane, lanes)]
    data = waited & data_waits(trace)
    launching = (waited & union(calls.start_ns, calls.end_ns)) - data
    return {
        TimeCategory.KERNELS: used.compute,
        TimeCategory.COMMUNICATION: used.communication - used.compute,
        TimeCategory.COPIES: used.copy - used.compute - used.communication,
        TimeCategory.ARRIVING: arriving,
        TimeCategory.STALLED: stalled,
        TimeCategory.DATA: data,
        TimeCategory.LAUNCHING: launching,
        TimeCategory.OUTSIDE: waited - data - launching,
    }


def _launched(trace: Trace, device: str, gaps: Intervals) -> tuple[Intervals, Intervals]:
    """Return the ends of gaps that follow the call which launched the next work.

    Returns:
        Short ends, in which the launch is on its way; and long ends, in which the work waits for an event, for another
        stream, or for work that was not recorded.
    """
    work = trace.events.of(*ON_DEVICE)
    work = work[np.array([lane.on_device and lane.process == device for lane in trace.lanes])[work.lane]]
    work = work[np.argsort(work.start_ns, kind="stable")]
    runtime = trace.events.of(Kind.RUNTIME)
    call_of = launch_of(work, runtime)
    next_work = np.searchsorted(work.start_ns, gaps.ends_ns)
    ended = next_work < len(work)
    starts_ns, ends_ns, next_work = gaps.starts_ns[ended], gaps.ends_ns[ended], next_work[ended]
    known = (call_of[next_work] != NONE) & (work.start_ns[next_work] == ends_ns)
    if not known.any():
        return EMPTY, EMPTY
    ends_ns = ends_ns[known]
    begun_ns = np.maximum(runtime.end_ns[call_of[next_work[known]]], starts_ns[known])
    short = ends_ns - begun_ns <= _LATENCY_NS
    return union(begun_ns[short], ends_ns[short]), union(begun_ns[~short], ends_ns[~short])


def _of_cpu(trace: Trace, window: Intervals) -> dict[TimeCategory, Intervals]:
    calls = trace.events.of(Kind.OPERATOR, Kind.RUNTIME)
    collectives = trace.named(trace.events.of(Kind.ANNOTATION, Kind.OPERATOR), _COLLECTIVE)
    data = data_waits(trace) & window
    waiting = trace.named(calls, _WAITING)
    other = calls[~trace.names_matching(f"{_WAITING}|{_AROUND}")[calls.name]]
    computing = union(other.start_ns, other.end_ns) - union(waiting.start_ns, waiting.end_ns)
    communication = (union(collectives.start_ns, collectives.end_ns) & window) - data - computing
    operators = (union(calls.start_ns, calls.end_ns) & window) - data - communication
    return {
        TimeCategory.OPERATORS: operators,
        TimeCategory.DATA: data,
        TimeCategory.COMMUNICATION: communication,
        TimeCategory.OUTSIDE: window - operators - data - communication,
    }
