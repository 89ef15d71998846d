"""What changed between two traces: kernels and operators that came, went, or take another time."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from whet.figures import nanoseconds, percent
from whet.trace_profiler.gpu import DeviceTime
from whet.trace_profiler.operators import OperatorTime
from whet.trace_profiler.report import FORMAT, TraceReport

_SAME = 0.05  # of the time before: less than this is no change
_SMALL = 0.001  # of the time of all kernels, or operators, in both traces: less than this is no change


class Change(StrEnum):
    ADDED = "added"
    REMOVED = "removed"
    SLOWER = "slower"
    FASTER = "faster"
    SAME = "same"


@dataclass(frozen=True)
class Changed:
    """One kernel or operator in both traces. Times and calls are per step, where steps are compared, else totals.

    time: of a kernel, its sum; of an operator, its self time on the CPU.
    """

    name: str
    what: str  # "operator", or a kernel's use: compute, communication, copy
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
    """One figure of both traces. unit: "ns", "share" or "count"; None where a trace does not hold it."""

    name: str
    unit: str
    before: float | None
    after: float | None


@dataclass(frozen=True)
class TraceChanges:
    """Two traces side by side. per_step: figures are divided by the number of whole steps, which both traces have.

    kernels, operators: by how much their time changed, the largest first.
    """

    before: TraceReport
    after: TraceReport
    per_step: bool
    sentence: str
    figures: tuple[Figure, ...]
    kernels: tuple[Changed, ...]
    operators: tuple[Changed, ...]

    def _repr_html_(self) -> str:
        from whet.trace_profiler.notebook import changes_html

        return changes_html(self)

    def summary(self) -> dict[str, Any]:
        """As JSON."""
        return {"format": FORMAT, **asdict(self)}


def compare_traces(before: TraceReport, after: TraceReport) -> TraceChanges:
    """What changed from one trace to the other.

    Two recordings say nothing about noise: a difference of 5% can be chance, and only larger ones are called changes.
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
    """Time, calls and what it is, by name."""
    return {
        found.name: (found.self_ns * scale, found.calls * scale, "operator")
        if isinstance(found, OperatorTime)
        else (found.total_ns * scale, found.calls * scale, str(found.use))
        for found in times
    }


def _duration_ns(report: TraceReport, scale: float, per_step: bool) -> float:
    return scale * (sum(step.duration_ns for step in report.whole_steps()) if per_step else report.window_ns)


def _figures(before: TraceReport, after: TraceReport, scales: tuple[float, float], per_step: bool) -> list[Figure]:
    """The figures of the whole, side by side."""
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
    """How much longer or shorter it takes, and the one change that says most."""
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
