"""Find what bounds the program that was traced, and say it in words, with the figures that show it."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from whet.profiling.bounds import ADVICE, Bound
from whet.profiling.trace.account import Share, TimeCategory
from whet.profiling.trace.gpu import DeviceTime, DeviceUse, Use, short_name
from whet.profiling.trace.launches import Launches
from whet.profiling.trace.operators import OperatorTime
from whet.ui.figures import nanoseconds, percent

_WORTH_SAYING = 0.15  # a bound with at least this share of the window is mentioned
_RECORD_AGAIN = "record again with ProfilerActivity.CUDA and without the CUPTI range profiler"


_BOUND_OF = {
    TimeCategory.KERNELS: Bound.GPU,
    TimeCategory.COMMUNICATION: Bound.COMMUNICATION,
    TimeCategory.COPIES: Bound.COPY,
    TimeCategory.DATA: Bound.INPUT,
    TimeCategory.LAUNCHING: Bound.LAUNCH,
    TimeCategory.ARRIVING: Bound.LAUNCH,
    TimeCategory.STALLED: Bound.STALL,
    TimeCategory.OUTSIDE: Bound.HOST,
    TimeCategory.OPERATORS: Bound.CPU,
}

_PHRASES = {
    Bound.GPU: "the GPU computes",
    Bound.LAUNCH: "the GPU waits for the CPU to call operators and launch kernels",
    Bound.INPUT: "the program waits for its next batch",
    Bound.COMMUNICATION: "communication runs and no computation overlaps it",
    Bound.COPY: "only copies run",
    Bound.HOST: "no operator runs: Python, other code or another process takes the time",
    Bound.STALL: "the GPU is idle although work is launched: it waits for an event or a stream, or was not recorded",
    Bound.CPU: "the CPU runs operators",
}


@dataclass(frozen=True)
class TraceVerdict:
    """Describe what bounds the program. `share` is the share of the window that goes into it, 0 to 1."""

    bound: Bound
    share: float
    sentence: str
    advice: str


def judge(
    shares: Sequence[Share],
    window_ns: int,
    gpu: DeviceUse | None,
    launches: Launches | None,
    device_times: Sequence[DeviceTime],
    operators: Sequence[OperatorTime],
) -> TraceVerdict:
    """Return the verdict on an account.

    Args:
        gpu: The device of the account; None if the account is of the CPU.
        device_times: All kernels, copies and fills, the one with the most time first.
        operators: All operators, the one with the most self time first.
    """
    if gpu is None and launches is not None and launches.num_calls:
        sentence = (
            f"the trace holds {launches.num_calls:,} launches of kernels, but it does not say when the kernels ran, "
            "so it is unknown what bounds the program."
        )
        return TraceVerdict(Bound.UNKNOWN, 0.0, sentence, _RECORD_AGAIN)
    sums: dict[Bound, int] = defaultdict(int)
    for share in shares:
        sums[_BOUND_OF[share.entry]] += share.time_ns
    ranked = sorted(sums, key=lambda bound: -sums[bound])
    bound = ranked[0]
    phrases = [f"for {percent(sums[bound] / window_ns)} of {nanoseconds(window_ns)} {_PHRASES[bound]}"]
    phrases += [
        f"for {percent(sums[other] / window_ns)} {_PHRASES[other].partition(':')[0]}"
        for other in ranked[1:]
        if sums[other] >= _WORTH_SAYING * window_ns
    ]
    evidence = _evidence(bound, gpu, launches, device_times, operators)
    sentence = "; ".join(phrases) + "." + (f" {evidence}" if evidence else "")
    return TraceVerdict(bound, sums[bound] / window_ns, sentence, ADVICE[bound])


def _evidence(
    bound: Bound,
    gpu: DeviceUse | None,
    launches: Launches | None,
    device_times: Sequence[DeviceTime],
    operators: Sequence[OperatorTime],
) -> str:
    """Return one more sentence, which says what to look at first."""
    if bound is Bound.LAUNCH and launches is not None and launches.num_calls > 1:
        median = nanoseconds(launches.call_median_ns or 0)
        text = f"{launches.num_calls:,} launches take {median} of CPU time each (median)"
        if launches.num_short:
            text += f"; {launches.num_short:,} of {launches.num_matched:,} kernels run shorter than their launch takes"
        return f"{text}."
    if bound in (Bound.GPU, Bound.COPY, Bound.COMMUNICATION) and gpu is not None:
        use = {Bound.GPU: Use.COMPUTE, Bound.COPY: Use.COPY}.get(bound, Use.COMMUNICATION)
        of_use = [found for found in device_times if found.use is use]
        total_ns = sum(found.total_ns for found in of_use)
        share = percent(of_use[0].total_ns / total_ns) if total_ns else "0%"
        return f"The slowest, {_cut(short_name(of_use[0].name))}, takes {share} of that over {of_use[0].calls:,} runs."
    if bound is Bound.CPU and operators:
        total_ns = sum(found.self_ns for found in operators)
        share = percent(operators[0].self_ns / total_ns) if total_ns else "0%"
        return f"The slowest, {_cut(operators[0].name)}, takes {share} of the operators' time."
    if gpu is not None:
        return f"The GPU is busy for {percent(gpu.busy_ns / gpu.window_ns)} of the time."
    return ""


def _cut(name: str) -> str:
    return name if len(name) <= 60 else f"{name[:59]}…"
