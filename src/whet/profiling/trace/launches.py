"""Find how kernels reach a GPU: the runtime calls that launch them, their cost, and how long kernels then wait."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from whet.profiling.trace.trace import NONE, ON_DEVICE, Events, Kind, Trace

_LAUNCH = r"\w*Launch(?!HostFunc)"  # cudaLaunchKernel, cuLaunchKernelEx, hipExtModuleLaunchKernel, cudaGraphLaunch
_WAIT = r"\w*Synchronize|(?:cuda|hip)Memcpy$|hipMemcpyWithStream$"  # the CPU waits in these until the GPU is done


@dataclass(frozen=True)
class RuntimeCall:
    """Describe all calls of one function of the runtime or driver."""

    name: str
    calls: int
    total_ns: int
    median_ns: int
    longest_ns: int


@dataclass(frozen=True)
class Launches:
    """Describe the launches of kernels.

    A delay lasts from the start of the call to the start of the kernel. Delays are None if no kernel has a known call,
    as in a trace of which only a part was kept.

    Attributes:
        num_calls: How many calls launched kernels.
        call_total_ns: The CPU time of these calls.
        num_matched: How many kernels have a call that is known by its correlation.
        num_short: How many of these ran shorter than their call took.
        num_early: How many of these started before their call, because the clocks of CPU and GPU disagree.
        num_waits: How many calls made the CPU wait for the GPU.
        runtime: Every function of the runtime, the one with the most time first.
    """

    num_calls: int
    call_total_ns: int
    call_median_ns: int | None
    call_longest_ns: int | None
    num_kernels: int
    num_matched: int
    num_short: int
    num_early: int
    delay_median_ns: int | None
    delay_p90_ns: int | None
    delay_longest_ns: int | None
    num_waits: int
    wait_total_ns: int
    runtime: tuple[RuntimeCall, ...]


def launch_of(device: Events, runtime: Events) -> npt.NDArray[np.int64]:
    """Return for each of N device events the index in `runtime` of the call that started it, or NONE, [N].

    One call may start many events (a CUDA graph). If calls are nested, as a driver call in a runtime call, the outer
    one counts. A correlation that several separate calls share, as in merged traces of several processes, links
    nothing.
    """
    known = np.flatnonzero(runtime.correlation > 0)
    if not len(known) or not len(device):
        return np.full(len(device), NONE, np.int64)
    known = known[np.lexsort((runtime.start_ns[known], runtime.correlation[known]))]
    numbers, first = np.unique(runtime.correlation[known], return_index=True)
    lanes, ends_ns = runtime.lane[known], runtime.end_ns[known]
    one_thread = np.minimum.reduceat(lanes, first) == np.maximum.reduceat(lanes, first)
    is_one = one_thread & (np.maximum.reduceat(ends_ns, first) <= ends_ns[first])
    at = np.minimum(np.searchsorted(numbers, device.correlation), len(numbers) - 1)
    found = (numbers[at] == device.correlation) & is_one[at]
    return np.where(found, known[first[at]], NONE).astype(np.int64)


def launches(trace: Trace) -> Launches | None:
    """Measure what launching cost over the whole trace; None if the trace has no launch, no wait and no kernel."""
    runtime, kernels = trace.events.of(Kind.RUNTIME), trace.events.of(Kind.KERNEL)
    call_of = launch_of(kernels, runtime)
    matched = call_of != NONE
    is_launch = trace.names_matching(_LAUNCH)[runtime.name]
    is_launch[call_of[matched]] = True
    calls, waits = runtime[is_launch], waiting(trace)
    if not len(calls) and not len(kernels) and not len(waits):
        return None
    mine, started = runtime[call_of[matched]], kernels[matched]
    delays = started.start_ns - mine.start_ns
    return Launches(
        num_calls=len(calls),
        call_total_ns=int(calls.duration_ns.sum()),
        call_median_ns=_quantile(calls.duration_ns, 0.5),
        call_longest_ns=_quantile(calls.duration_ns, 1.0),
        num_kernels=len(kernels),
        num_matched=len(started),
        num_short=int((started.duration_ns < mine.duration_ns).sum()),
        num_early=int((delays < 0).sum()),
        delay_median_ns=_quantile(delays, 0.5),
        delay_p90_ns=_quantile(delays, 0.9),
        delay_longest_ns=_quantile(delays, 1.0),
        num_waits=len(waits),
        wait_total_ns=int(waits.duration_ns.sum()),
        runtime=_by_name(trace, runtime),
    )


def waiting(trace: Trace) -> Events:
    """Return the runtime calls in which the CPU waits for the GPU."""
    return trace.named(trace.events.of(Kind.RUNTIME), _WAIT)


def launching_lanes(trace: Trace) -> npt.NDArray[np.int32]:
    """Return the threads that started anything on a device; if none is known, all threads with events."""
    runtime = trace.events.of(Kind.RUNTIME)
    call_of = launch_of(trace.events.of(*ON_DEVICE), runtime)
    lanes: npt.NDArray[np.int32] = np.unique(runtime.lane[call_of[call_of != NONE]])
    return lanes if len(lanes) else np.unique(trace.events.of(Kind.OPERATOR, Kind.RUNTIME).lane)


def _quantile(values_ns: npt.NDArray[np.int64], fraction: float) -> int | None:
    return round(float(np.quantile(values_ns, fraction))) if len(values_ns) else None


def _by_name(trace: Trace, runtime: Events) -> tuple[RuntimeCall, ...]:
    by_name, took_ns = runtime.by_name(), runtime.duration_ns
    figures = (by_name.names, by_name.counts, by_name.sums(took_ns), by_name.largest(took_ns))
    rows = zip(*(column.tolist() for column in figures), map(np.median, by_name.each(took_ns)), strict=True)
    found = [
        RuntimeCall(trace.names[name], calls, total_ns, round(float(median_ns)), longest_ns)
        for name, calls, total_ns, longest_ns, median_ns in rows
    ]
    return tuple(sorted(found, key=lambda call: (-call.total_ns, call.name)))
