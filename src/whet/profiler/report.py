"""Everything a profile found, as one value: what is shown, what is written, and what a child process hands back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter

from whet.bounds import Bound
from whet.measure.source_location import Line
from whet.profiler.allocations import TensorMemory
from whet.profiler.leaks import Leak
from whet.profiler.operators import Operators
from whet.profiler.referrers import LiveTensor
from whet.profiler.sections import SectionCost, TimerCost
from whet.profiler.timeline import Fragmentation, MemoryUse
from whet.profiler.verdict import ProfileVerdict

T = TypeVar("T")

_MOST_OPERATORS = 50
_MOST_LINES = 20
_MOST_POINTS = 400


@dataclass(frozen=True)
class LayerLine:
    """One row of the table of layers, for one call of the model.

    intensity: operations per byte; infinite never, None where no byte is read. bound: what holds the layer back.
    share_of_limit: what is attainable here / measured; None where no time was measured, or the
    layer itself does no work.
    """

    name: str
    kind: str
    calls: int
    time_s: float
    flops: int
    num_bytes: int
    intensity: float | None
    bound: Bound
    share_of_limit: float | None


@dataclass(frozen=True)
class Latency:
    """One call of the model, warm. p99_ms: None with too few calls to speak of one. cores: kept busy on average."""

    median_ms: float
    p90_ms: float
    p99_ms: float | None
    num_calls: int
    throughput: float
    cores: float


@dataclass(frozen=True)
class Report:
    """What a profile found; what was not looked at is None or empty.

    partial: why it stopped before its end, or "". busy: what disturbed the times, on a busy machine.
    instrumented: whether the times of the sections hold the cost of
    tracing. layers_s: what the layers' times add up to; call_s: the whole call that they are parts of, measured beside
    them. commands: to go deeper with other tools.
    """

    name: str
    device: str = "cpu"
    dtype: str = ""
    format: Literal[1] = 1
    partial: str = ""
    busy: str = ""
    verdict: ProfileVerdict | None = None
    wall_s: float = 0.0
    cpu_s: float = 0.0
    num_steps: int = 0
    latency: Latency | None = None
    layers: tuple[LayerLine, ...] = ()
    call_s: float | None = None
    sections: tuple[SectionCost, ...] = ()
    timers: tuple[TimerCost, ...] = ()
    instrumented: bool = False
    operators: Operators | None = None
    memory: MemoryUse | None = None
    tensors: TensorMemory | None = None
    largest: tuple[LiveTensor, ...] = ()
    leaks: tuple[Leak, ...] | None = None
    fragmentation: Fragmentation | None = None
    notes: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        from whet.profiler.notebook import report_html

        return report_html(self)

    @property
    def layers_s(self) -> float:
        return sum(layer.time_s for layer in self.layers)

    @property
    def total_flops(self) -> int:
        return sum(layer.flops for layer in self.layers)


_REPORT = TypeAdapter(Report)


def as_json(report: Report) -> dict[str, Any]:
    """Plain JSON: long tables cut to their first rows, timelines thinned with their peaks kept. What can be worked out
    is spelled out beside it, for readers that are programs."""
    small = _cut(report)
    data: dict[str, Any] = _REPORT.dump_python(small, mode="json")
    data["layers_s"], data["total_flops"] = report.layers_s, report.total_flops
    for row, section in zip(data["sections"], small.sections, strict=True):
        row["name"], row["depth"] = section.name, section.depth
    for row, leak in zip(data["leaks"] or (), small.leaks or (), strict=True):
        row["sentence"] = leak.sentence
    if small.verdict is not None:
        data["verdict"]["text"] = small.verdict.text
    _add_code(data)
    return data


def from_json(data: dict[str, Any]) -> Report:
    """What as_json wrote, in another process perhaps; what was spelled out beside it is passed over."""
    return _REPORT.validate_python(data)


def _add_code(data: Any) -> None:
    """Beside each line of code, what stands there."""
    if isinstance(data, dict):
        if {"file", "number", "function"} <= data.keys():
            data["code"] = Line(data["file"], data["number"], data["function"]).text
        for value in data.values():
            _add_code(value)
    elif isinstance(data, list):
        for value in data:
            _add_code(value)


def _cut(report: Report) -> Report:
    operators, memory, tensors = report.operators, report.memory, report.tensors
    return replace(
        report,
        operators=replace(operators, costs=operators.costs[:_MOST_OPERATORS]) if operators else None,
        memory=replace(memory, points=_thinned(memory.points, key=lambda p: p.rss_bytes)) if memory else None,
        tensors=(
            replace(
                tensors,
                points=_thinned(tensors.points, key=lambda p: p[1]),
                peak_lines=tensors.peak_lines[:_MOST_LINES],
                step_bytes=tensors.step_bytes[-_MOST_POINTS:],
                step_peak_bytes=tensors.step_peak_bytes[-_MOST_POINTS:],
            )
            if tensors
            else None
        ),
    )


def _thinned(points: Sequence[T], key: Callable[[T], float]) -> tuple[T, ...]:
    """At most _MOST_POINTS of them: of each stretch the highest, and always the first and the last."""
    if len(points) <= _MOST_POINTS:
        return tuple(points)
    stretch = -(-(len(points) - 2) // (_MOST_POINTS - 2))
    inner = points[1:-1]
    highest = [max(inner[i : i + stretch], key=key) for i in range(0, len(inner), stretch)]
    return (points[0], *highest, points[-1])
