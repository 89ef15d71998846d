"""Find which operators a trace's time went into: by themselves, with what they called, and on the GPU."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from whet.profiling.trace.launches import launch_of
from whet.profiling.trace.trace import NONE, ON_DEVICE, Events, Kind, Trace

_ON_THREADS = (Kind.OPERATOR, Kind.ANNOTATION, Kind.RUNTIME)


@dataclass(frozen=True)
class OperatorTime:
    """Describe all calls of one operator, or of one region that the user named (an annotation).

    As in torch.profiler's tables, an operator that calls itself counts twice in totals. GPU times add up all streams.

    Attributes:
        self_ns: CPU time, without operators, regions and runtime calls inside it.
        total_ns: CPU time from call to return.
        gpu_self_ns: GPU time of what it launched itself.
        gpu_total_ns: GPU time of what it and the operators inside it launched.
    """

    name: str
    calls: int
    self_ns: int
    total_ns: int
    gpu_self_ns: int
    gpu_total_ns: int


@dataclass(frozen=True)
class CallTree:
    """Hold which events ran inside which on the CPU's threads, [N] events.

    Attributes:
        events: The events. A parent comes before its children.
        parent: The index of each event's parent, or NONE, [N].
        launcher: The index of the nearest operator around each event (the event itself, if it is one), or NONE, [N].
    """

    events: Events
    parent: npt.NDArray[np.int64]
    launcher: npt.NDArray[np.int64]


def call_tree(trace: Trace) -> CallTree:
    """Nest events by their times, thread by thread, as torch.profiler does.

    An event that begins inside another but ends after it is not inside it.
    """
    events = trace.events.of(*_ON_THREADS)
    # If two begin and end together, the one that the profiler wrote first is outer, but a runtime call is always inner.
    order = np.lexsort((events.kind == Kind.RUNTIME, -events.end_ns, events.start_ns, events.lane))
    events = events[order]
    starts, ends, lanes = events.start_ns.tolist(), events.end_ns.tolist(), events.lane.tolist()
    operators = (events.kind == Kind.OPERATOR).tolist()
    parent, launcher = [NONE] * len(starts), [NONE] * len(starts)
    stack: list[int] = []
    lane = NONE
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if lanes[i] != lane:
            lane = lanes[i]
            stack.clear()
        while stack and (start >= ends[stack[-1]] or end > ends[stack[-1]]):
            stack.pop()
        if stack:
            parent[i] = stack[-1]
            launcher[i] = launcher[stack[-1]]
        if operators[i]:
            launcher[i] = i
        stack.append(i)
    return CallTree(events, np.array(parent, np.int64), np.array(launcher, np.int64))


def operator_times(trace: Trace, kind: Kind = Kind.OPERATOR) -> tuple[OperatorTime, ...]:
    """Return every operator (or annotation) by name over the whole trace, the one with the most self time first."""
    tree = call_tree(trace)
    events = tree.events
    inside = tree.parent != NONE
    self_ns = events.duration_ns - _sums(tree.parent[inside], events.duration_ns[inside], len(events))
    gpu_self_ns = _gpu_by_launcher(trace, tree)
    operator_above = np.where(inside, tree.launcher[tree.parent], NONE)  # the nearest around each event, not itself
    gpu_total_ns = _with_inner(gpu_self_ns, operator_above)
    mine = events.kind == kind
    if kind is Kind.ANNOTATION:
        gpu_self_ns = np.zeros_like(gpu_self_ns)
        gpu_total_ns = _with_inner(_gpu_by_call(trace, events), tree.parent)
    by_name = events[mine].by_name()
    columns = [self_ns, events.duration_ns, gpu_self_ns, gpu_total_ns]
    sums = [by_name.sums(column[mine]).tolist() for column in columns]
    rows = zip(by_name.names.tolist(), by_name.counts.tolist(), *sums, strict=True)
    found = [OperatorTime(trace.names[name], *figures) for name, *figures in rows]
    return tuple(sorted(found, key=lambda time: (-time.self_ns, -time.total_ns, time.name)))


def _sums(where: npt.NDArray[np.int64], values: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.int64]:
    total = np.zeros(length, np.int64)
    np.add.at(total, where, values)
    return total


def _gpu_by_call(trace: Trace, events: Events) -> npt.NDArray[np.int64]:
    """Return for each event the device time of the work that it started. It is zero for all but runtime calls."""
    device = trace.events.of(*ON_DEVICE)
    is_call = np.flatnonzero(events.kind == Kind.RUNTIME)
    call_of = launch_of(device, events[is_call])
    matched = call_of != NONE
    return _sums(is_call[call_of[matched]], device.duration_ns[matched], len(events))


def _gpu_by_launcher(trace: Trace, tree: CallTree) -> npt.NDArray[np.int64]:
    by_call = _gpu_by_call(trace, tree.events)
    launched = tree.launcher != NONE
    return _sums(tree.launcher[launched], by_call[launched], len(by_call))


def _with_inner(own: npt.NDArray[np.int64], above: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Add to each event's own figure those of all events inside it. Children come after their parents."""
    totals: list[int] = own.tolist()
    parents: list[int] = above.tolist()
    for i in range(len(totals) - 1, -1, -1):
        if parents[i] != NONE:
            totals[parents[i]] += totals[i]
    return np.array(totals, np.int64)
