"""Find what changed between two traces: kernels and operators that were added or removed, or whose time changed."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from whet.profiling.trace.gpu import DeviceTime
from whet.profiling.trace.operators import OperatorTime
from whet.profiling.trace.report import FORMAT, TraceReport
from whet.ui.figures import nanoseconds, percent
from whet.ui.notebook import Shown

_SAME = 0.05  # a smaller share of the time before is no change
_SMALL = 0.001  # a smaller share of the time of all kernels, or of all operators, is no change


class Change(StrEnum):
    ADDED = "added"
    REMOVED = "removed"
    SLOWER = "slower"
    FASTER = "faster"
    SAME = "same"


@dataclass(frozen=True)
class Changed:
    """Compare one kernel or operator in both traces. If steps are compared, times and calls are per step.

    Attributes:
        what: "operator", or the use of a kernel: "compute", "communication" or "copy".
        before_ns: Its time in the first trace: the sum for a kernel, the CPU self time for an operator.
    """

    name: str
    what: str
    change: Change
    before_ns: float
    after_ns: float
    before_calls: float
    after_calls: float

    @property
    def difference_ns(self) -> float:
        return self.after_ns - self.before_ns


@dataclass(frozen=True)
class Figure:
    """Compare one figure of both traces, in "ns", "share" or "count". A side is None if the trace does not have it."""

    name: str
    unit: str
    before: float | None
    after: float | None


@dataclass(frozen=True)
class TraceChanges(Shown):
    """Compare two traces. The kernels and operators whose time changed most come first.

    Attributes:
        per_step: Whether figures are divided by the number of whole steps. If not, one of the traces has no such steps.
    """

    before: TraceReport
    after: TraceReport
    per_step: bool
    sentence: str
    figures: tuple[Figure, ...]
    kernels: tuple[Changed, ...]
    operators: tuple[Changed, ...]

    def summary(self) -> dict[str, Any]:
        """Return the comparison as a JSON-serialisable dict."""
        return {"format": FORMAT, **asdict(self)}


def compare_traces(before: TraceReport, after: TraceReport) -> TraceChanges:
    """Find what changed from one trace to the other.

    Two recordings do not show the noise: 5% can be chance, so only larger differences are called changes.
    """
    num_before, num_after = len(before.whole_steps()), len(after.whole_steps())
    per_step = bool(num_before and num_after)
    scales = (1 / num_before, 1 / num_after) if per_step else (1.0, 1.0)
    kernels = _changes(before.kernels, after.kernels, scales)
    operators = _changes(before.operators, after.operators, scales)
    return TraceChanges(
        before=before,
        after=after,
        per_step=per_step,
        sentence=_sentence(before, after, scales, per_step, kernels or operators),
        figures=tuple(_figures(before, after, scales, per_step)),
        kernels=kernels,
        operators=operators,
    )


def _changes(
    before: Sequence[DeviceTime] | Sequence[OperatorTime],
    after: Sequence[DeviceTime] | Sequence[OperatorTime],
    scales: tuple[float, float],
) -> tuple[Changed, ...]:
    befores, afters = _by_name(before, scales[0]), _by_name(after, scales[1])
    least_ns = _SMALL * max(sum(t for t, _, _ in side.values()) for side in (befores, afters))
    found = []
    for name in befores.keys() | afters.keys():
        before_ns, before_calls, what = befores.get(name, (0.0, 0.0, ""))
        after_ns, after_calls, what_after = afters.get(name, (0.0, 0.0, ""))
        change = _change(before_ns, after_ns, name in befores, name in afters, least_ns)
        found.append(Changed(name, what or what_after, change, before_ns, after_ns, before_calls, after_calls))
    return tuple(sorted(found, key=lambda c: (-abs(c.difference_ns), -c.after_ns, c.name)))


def _change(before_ns: float, after_ns: float, was: bool, is_now: bool, least_ns: float) -> Change:
    if not was:
        return Change.ADDED
    if not is_now:
        return Change.REMOVED
    difference_ns = after_ns - before_ns
    if abs(difference_ns) <= max(_SAME * before_ns, least_ns):
        return Change.SAME
    return Change.SLOWER if difference_ns > 0 else Change.FASTER


def _by_name(
    times: Sequence[DeviceTime] | Sequence[OperatorTime], scale: float
) -> Mapping[str, tuple[float, float, str]]:
    """Return the time, the calls and the kind of each kernel or operator, by name."""
    return {
        found.name: (found.self_ns * scale, found.calls * scale, "operator")
        if isinstance(found, OperatorTime)
        else (found.total_ns * scale, found.calls * scale, str(found.use))
        for found in times
    }


def _duration_ns(report: TraceReport, scale: float, per_step: bool) -> float:
    return scale * (sum(step.duration_ns for step in report.whole_steps()) if per_step else report.window_ns)


def _figures(before: TraceReport, after: TraceReport, scales: tuple[float, float], per_step: bool) -> list[Figure]:
    sides = tuple(zip((before, after), scales, strict=True))
    gpus = [report.devices[0] if report.devices else None for report in (before, after)]
    found = [
        Figure("step" if per_step else "recorded", "ns", *(_duration_ns(r, scale, per_step) for r, scale in sides)),
        Figure("CPU busy", "share", *(report.cpu_busy_ns / report.window_ns for report, _ in sides)),
    ]
    if any(gpus):
        found.append(Figure("GPU busy", "share", *(gpu.busy_ns / gpu.window_ns if gpu else None for gpu in gpus)))
        found += [
            Figure(name, "ns", *(getattr(gpu, field) * s if gpu else None for gpu, s in zip(gpus, scales, strict=True)))
            for name, field in (
                ("compute", "compute_ns"),
                ("communication", "communication_ns"),
                ("  of it beside compute", "communication_hidden_ns"),
                ("copies and fills", "copy_ns"),
            )
        ]
    launches = [report.launches for report in (before, after)]
    if any(launches):
        found += [
            Figure(name, unit, *(getattr(f, field) * s if f else None for f, s in zip(launches, scales, strict=True)))
            for name, unit, field in (
                ("launches", "count", "num_calls"),
                ("CPU time of launches", "ns", "call_total_ns"),
                ("waits for the GPU", "count", "num_waits"),
            )
        ]
        found.append(Figure("launch to start, median", "ns", *(f.delay_median_ns if f else None for f in launches)))
    return [figure for figure in found if figure.before or figure.after]


def _sentence(
    before: TraceReport,
    after: TraceReport,
    scales: tuple[float, float],
    per_step: bool,
    changes: Sequence[Changed],
) -> str:
    """Say how much longer or shorter the second trace takes, and whether its bound changed."""
    before_ns, after_ns = (
        _duration_ns(report, scale, per_step) for report, scale in zip((before, after), scales, strict=True)
    )
    what = "a step takes" if per_step else "the recorded time is"
    difference = after_ns / before_ns - 1 if before_ns else 0.0
    if abs(difference) < _SAME:
        text = f"{what} about the same: {nanoseconds(before_ns)} before, {nanoseconds(after_ns)} after"
    else:
        word = "longer" if difference > 0 else "shorter"
        much = f"{percent(abs(difference))} {word}" if difference < 1 else f"{after_ns / before_ns:.3g}x as long"
        text = f"{what} {much}: {nanoseconds(before_ns)} before, {nanoseconds(after_ns)} after"
    if before.verdict.bound is not after.verdict.bound:
        text += f"; it was {before.verdict.bound} and is {after.verdict.bound}"
    else:
        text += f"; it is {after.verdict.bound} as before"
    if not any(change.change is not Change.SAME for change in changes):
        text += "; no kernel or operator changed"
    return f"{text}."
