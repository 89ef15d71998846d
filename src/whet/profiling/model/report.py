"""Hold the whole result of a profile as one value, which is shown, written, and sent back by a child process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter

from whet.measure.source_location import Line
from whet.profiling.bounds import Bound
from whet.profiling.model.allocations import TensorMemory
from whet.profiling.model.leaks import Leak
from whet.profiling.model.operators import Operators
from whet.profiling.model.referrers import LiveTensor
from whet.profiling.model.sections import SectionCost, TimerCost
from whet.profiling.model.timeline import Fragmentation, MemoryUse
from whet.profiling.model.verdict import ProfileVerdict
from whet.ui.notebook import Shown

T = TypeVar("T")

_MOST_OPERATORS = 50
_MOST_LINES = 20
_MOST_POINTS = 400


@dataclass(frozen=True)
class LayerLine:
    """Describe one layer, for one call of the model: a row of the table of layers.

    Attributes:
        name: The qualified name of the module; "" for the model itself.
        time_s: The measured time of all its calls.
        flops: Operations; a multiply-add counts as two.
        num_bytes: Bytes read and written.
        intensity: Operations per byte; None if the layer reads and writes nothing.
        share_of_limit: The least time that this machine allows, divided by the measured time. None if no time was
            measured, or if the layer does no work itself.
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
    """Describe how long one call of the warm model takes.

    Attributes:
        p99_ms: The 99th percentile; None if there were too few calls.
        throughput: Samples per second.
        cores: How many cores were busy on average.
    """

    median_ms: float
    p90_ms: float
    p99_ms: float | None
    num_calls: int
    throughput: float
    cores: float


@dataclass(frozen=True)
class Report(Shown):
    """Hold what a profile found. A field is None or empty if its part was not measured.

    Attributes:
        device: "cpu" or "cuda".
        dtype: The dtype of most weights, as "float32".
        partial: Why the profile stopped before its end; "" if it finished.
        busy: What disturbed the times on a busy machine; "" on a quiet one.
        cpu_s: CPU time of the whole block, over all threads.
        num_steps: How many times `step()` was called; for a model, how many calls were watched for memory.
        latency: The latency of the model; None for a block.
        call_s: The time of one whole call without instruments, measured in turn with the layers' times.
        sections: One row for each section, parents before children.
        instrumented: Whether the times of the sections include the cost of tracing.
        memory: The memory of the process, or of the GPU, over time.
        largest: The largest tensors alive at the end.
        leaks: What grows from step to step; None if it was not measured, or if there were too few steps.
        commands: Commands of other tools that show more.
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

    @property
    def layers_s(self) -> float:
        return sum(layer.time_s for layer in self.layers)

    @property
    def total_flops(self) -> int:
        return sum(layer.flops for layer in self.layers)


_REPORT = TypeAdapter(Report)


def as_json(report: Report) -> dict[str, Any]:
    """Return a report as a JSON-serialisable dict.

    Long tables are cut to their first rows. Timelines are thinned, with their peaks kept. Derived values (`layers_s`, a
    leak's `sentence`, the verdict's `text`, the code of a line) are added for programs that read the JSON.
    """
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
    """Return the report that `as_json` wrote. The derived values that `as_json` added are ignored."""
    return _REPORT.validate_python(data)


def _add_code(data: Any) -> None:
    """Add to each line of code, anywhere in the data, its source text as `code`."""
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
    """Thin points to at most _MOST_POINTS: the first, the last, and the highest of each stretch between them."""
    if len(points) <= _MOST_POINTS:
        return tuple(points)
    stretch = -(-(len(points) - 2) // (_MOST_POINTS - 2))
    inner = points[1:-1]
    highest = [max(inner[i : i + stretch], key=key) for i in range(0, len(inner), stretch)]
    return (points[0], *highest, points[-1])
