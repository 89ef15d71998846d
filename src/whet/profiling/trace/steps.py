"""Find the window that a trace is judged over, and its steps one by one."""

from dataclasses import dataclass

import numpy as np

from whet.profiling.trace.intervals import EMPTY, Intervals, span, union
from whet.profiling.trace.launches import launch_of
from whet.profiling.trace.trace import NONE, ON_DEVICE, Kind, Trace

# PyTorch's own name for the wait, and the names that people give such a region.
_DATA = r"enumerate\(DataLoader\)|(?i:.*(?:data_?load|load_?data|load_?batch|next_?batch|fetch_?batch))"
_CUT = 0.2  # a last step shorter than so many times the median of the others was cut short


@dataclass(frozen=True)
class StepTime:
    """Describe one step of the profiler, from its start to its end on the CPU.

    Attributes:
        number: The N of ProfilerStep#N.
        gpu_busy_ns: How long any GPU was busy; None if the trace has no events on a GPU.
        is_cut: Whether this is the last step, and the end of the recording cut it short.
    """

    number: int
    start_ns: int
    duration_ns: int
    gpu_busy_ns: int | None
    data_wait_ns: int
    num_launches: int
    is_cut: bool


def window_of(trace: Trace) -> Intervals:
    """Return the time that is judged: the profiler's steps, and what they started on devices.

    The time before and after the steps is left out, because the profiler itself starts and stops then. Without steps,
    the window is the whole trace.
    """
    steps = trace.steps()
    device = trace.events.of(*ON_DEVICE)
    if not len(steps):
        named = trace.beside_operators(trace.events.of(Kind.ANNOTATION))
        parts = [trace.events.of(Kind.OPERATOR, Kind.RUNTIME, *ON_DEVICE), named]
        parts = [part for part in parts if len(part)] or [trace.events]
        first_ns = min(int(part.start_ns.min()) for part in parts)
        return span(first_ns, max(first_ns + 1, *(int(part.end_ns.max()) for part in parts)))  # never empty
    first_ns, last_ns = int(steps.start_ns.min()), int(steps.end_ns.max())
    runtime = trace.events.of(Kind.RUNTIME)
    call_of = launch_of(device, runtime)
    matched = call_of != NONE
    began_ns = runtime.start_ns[call_of[matched]]
    ends_ns = device.end_ns[matched][(began_ns >= first_ns) & (began_ns < last_ns)]
    return span(first_ns, max(first_ns + 1, int(ends_ns.max(initial=last_ns))))


def data_waits(trace: Trace) -> Intervals:
    """Return when the program waited for its next batch."""
    waits = trace.named(trace.events.of(Kind.ANNOTATION, Kind.OPERATOR), _DATA)
    return union(waits.start_ns, waits.end_ns) if len(waits) else EMPTY


def step_times(trace: Trace, gpu_busy: Intervals | None) -> tuple[StepTime, ...]:
    """Return each step. `gpu_busy` is when any device was busy; None without devices."""
    steps = trace.steps()
    if not len(steps):
        return ()
    waits_ns = data_waits(trace).lengths_ns(steps.start_ns, steps.end_ns)
    busy_ns = gpu_busy.lengths_ns(steps.start_ns, steps.end_ns) if gpu_busy is not None else None
    runtime = trace.events.of(Kind.RUNTIME)
    call_of = launch_of(trace.events.of(Kind.KERNEL), runtime)
    launched_ns = np.sort(runtime.start_ns[np.unique(call_of[call_of != NONE])])
    num_launches = np.searchsorted(launched_ns, steps.end_ns) - np.searchsorted(launched_ns, steps.start_ns)
    durations_ns = steps.duration_ns
    last = len(steps) - 1
    return tuple(
        StepTime(
            number=trace.step_number(int(steps.name[i])),
            start_ns=int(steps.start_ns[i]),
            duration_ns=int(durations_ns[i]),
            gpu_busy_ns=int(busy_ns[i]) if busy_ns is not None else None,
            data_wait_ns=int(waits_ns[i]),
            num_launches=int(num_launches[i]),
            is_cut=bool(i == last and last and durations_ns[i] < _CUT * np.median(durations_ns[:last])),
        )
        for i in range(len(steps))
    )
