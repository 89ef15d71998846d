"""Hold a trace that torch.profiler (Kineto) recorded, with its events as columns.

Kineto writes the kind of an event into its "cat". The names have changed over the years and differ between vendors.
KINDS has those of PyTorch 1.8 to 2.13 on CUDA, ROCm, Intel and out-of-tree devices.
"""

import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from whet.errors import TraceError
from whet.profiling.trace.file import TraceFile

_MOST_EVENTS = 5_000_000
_LATEST_US = 4e15  # the latest valid time stamp, in the year 2096
_LONGEST_US = 1e14  # the longest valid duration, three years
_STEP = re.compile(r"ProfilerStep#(\d+)")
NONE = -1  # stands for no correlation, no bytes, no index


class Kind(IntEnum):
    OPERATOR = 0  # on a CPU thread, as aten::mm
    ANNOTATION = 1  # on a CPU thread: record_function, steps of the profiler, collectives that were called
    RUNTIME = 2  # on a CPU thread: a call of the CUDA, HIP or other runtime or driver
    KERNEL = 3  # on a device
    COPY = 4  # on a device: a copy of memory
    FILL = 5  # on a device: memory set to a value
    OVERHEAD = 6  # work of the profiler itself
    COUNTED = 7  # CUPTI's profiler ranges: kernels with counters, but without true times
    PYTHON = 8  # a Python function; these are only counted


ON_DEVICE = (Kind.KERNEL, Kind.COPY, Kind.FILL)

KINDS = {
    "cpu_op": Kind.OPERATOR,
    "operator": Kind.OPERATOR,
    "user_annotation": Kind.ANNOTATION,
    "cuda_runtime": Kind.RUNTIME,
    "cuda_driver": Kind.RUNTIME,
    "runtime": Kind.RUNTIME,
    "hip_runtime": Kind.RUNTIME,
    "xpu_runtime": Kind.RUNTIME,
    "xpu_driver": Kind.RUNTIME,
    "mtia_runtime": Kind.RUNTIME,
    "privateuse1_runtime": Kind.RUNTIME,
    "privateuse1_driver": Kind.RUNTIME,
    "kernel": Kind.KERNEL,
    "gpu_memcpy": Kind.COPY,
    "memcpy": Kind.COPY,
    "gpu_memset": Kind.FILL,
    "memset": Kind.FILL,
    "overhead": Kind.OVERHEAD,
    "cuda_profiler_range": Kind.COUNTED,
    "python_function": Kind.PYTHON,
}


@dataclass(frozen=True)
class Events:
    """Hold events as columns of one length [N], in the order of the file. Times count from the trace's first event.

    Attributes:
        kind: Values of Kind.
        name: Indices into Trace.names.
        lane: Indices into Trace.lanes.
        correlation: Numbers that link a runtime call to the work that it started on a device; NONE for no link.
        num_bytes: Sizes of copies and fills; NONE if unknown.
    """

    start_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    kind: npt.NDArray[np.int8]
    name: npt.NDArray[np.int32]
    lane: npt.NDArray[np.int32]
    correlation: npt.NDArray[np.int64]
    num_bytes: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.start_ns)

    def __getitem__(self, which: npt.NDArray[Any]) -> "Events":
        """Return the events under a mask, or at indices."""
        return Events(*(getattr(self, column.name)[which] for column in fields(self)))

    @property
    def duration_ns(self) -> npt.NDArray[np.int64]:
        return self.end_ns - self.start_ns

    def of(self, *kinds: Kind) -> "Events":
        return self[np.isin(self.kind, kinds)]

    def by_name(self) -> "ByName":
        return ByName(self.name)


class ByName:
    """Group events by their names, which are indices into Trace.names, and take columns of theirs by name.

    `names` holds each name that occurs, and `counts` its events.
    """

    def __init__(self, name: npt.NDArray[np.int32]) -> None:
        self._order = np.argsort(name, kind="stable")
        ordered = name[self._order]
        self._starts = np.flatnonzero(np.diff(ordered, prepend=-1))  # a name is an index, from 0 on
        self.names, self.counts = ordered[self._starts], np.diff(self._starts, append=len(name))

    def sums(self, column: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.add.reduceat(column[self._order], self._starts)

    def largest(self, column: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.maximum.reduceat(column[self._order], self._starts)

    def each(self, column: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
        """Return the column's values of each name."""
        return np.split(column[self._order], self._starts[1:]) if len(self.names) else []


@dataclass(frozen=True)
class Lane:
    """Name a lane, where events run one after another: a thread of a process, or a stream of a device.

    If it is `on_device`, `process` and `thread` are the numbers of the device and the stream.
    """

    process: str
    thread: str
    on_device: bool


@dataclass(frozen=True)
class Trace:
    """Hold one trace.

    Attributes:
        events: The events of known kinds.
        names: The names of events, each once.
        num_seen: How many events the file has, including those that are left out here.
        num_python: How many Python functions were recorded (with_stack).
        num_damaged: How many events have no usable time or name.
        device_names: The name of each device, as "NVIDIA A100-PG509-200", by its number.
        rank: The rank of the process in a distributed run of `world_size` ranks; None if unknown.
    """

    path: Path
    events: Events
    names: tuple[str, ...]
    lanes: tuple[Lane, ...]
    num_seen: int
    num_python: int = 0
    num_damaged: int = 0
    device_names: Mapping[str, str] = field(default_factory=dict)
    rank: int | None = None
    world_size: int | None = None

    def names_matching(self, pattern: str) -> npt.NDArray[np.bool_]:
        """Return for each name whether it matches a regular expression from its start."""
        compiled = re.compile(pattern)
        return np.array([compiled.match(name) is not None for name in self.names], bool)

    def named(self, events: Events, pattern: str) -> Events:
        """Return the events whose name matches a regular expression from its start."""
        return events[self.names_matching(pattern)[events.name]] if len(events) else events

    def steps(self) -> Events:
        """Return the profiler's steps (ProfilerStep#N) in order of time. Processes without operators are left out."""
        steps = self.named(self.events.of(Kind.ANNOTATION, Kind.OPERATOR), _STEP.pattern)
        steps = self.beside_operators(steps)
        return steps[np.argsort(steps.start_ns, kind="stable")]

    def beside_operators(self, events: Events) -> Events:
        """Return the events in processes that ran operators or runtime calls. If no process did, return all events."""
        calls = self.events.of(Kind.OPERATOR, Kind.RUNTIME)
        processes = {self.lanes[lane].process for lane in np.unique(calls.lane)}
        if not processes:
            return events
        return events[np.array([lane.process in processes for lane in self.lanes])[events.lane]]

    def step_number(self, name: int) -> int:
        """Return the N of ProfilerStep#N."""
        found = _STEP.match(self.names[name])
        assert found is not None
        return int(found.group(1)[:18])


def read_trace(path: Path | str) -> Trace:
    """Read a trace as torch.profiler's export_chrome_trace writes it, plain or gzip.

    Memory grows by about 60 bytes for each event, and does not depend on the size of the file otherwise.

    Raises:
        TraceError: The file is damaged, cut off or no JSON, has too many events, or PyTorch did not write it.
    """
    file = TraceFile(Path(path))
    columns = _Columns()
    for event in file:
        columns.add(event)
        if len(columns.ts_us) > _MOST_EVENTS:
            raise TraceError(f"{path}: holds more than {_MOST_EVENTS:,} events; record fewer steps")
    if not columns.ts_us:
        raise TraceError(
            f"{path}: none of its {file.num_seen:,} events is PyTorch's (operators, kernels, runtime calls); "
            "pass a trace by torch.profiler"
        )
    trace = columns.trace(file)
    return replace(trace, **_facts(file.header))


class _Columns:
    """Collect events as columns while they are read from JSON."""

    def __init__(self) -> None:
        self.ts_us = array("d")
        self.dur_us = array("d")
        self.kind = array("b")
        self.name = array("i")
        self.lane = array("i")
        self.correlation = array("q")
        self.num_bytes = array("q")
        self.names: dict[str, int] = {}
        self.lanes: dict[tuple[str, str, bool], int] = {}
        self.num_python = 0
        self.num_damaged = 0

    def add(self, event: dict[str, Any]) -> None:
        """Keep an event if its kind is known and its name and times are usable."""
        if event.get("ph") != "X":
            return
        category = event.get("cat")
        kind = KINDS.get(category.lower()) if type(category) is str else None
        if kind is None:
            return
        if kind is Kind.PYTHON:
            self.num_python += 1
            return
        ts, dur, name = event.get("ts"), event.get("dur"), event.get("name")
        if type(name) is not str or not _is_time(ts, -_LATEST_US, _LATEST_US) or not _is_time(dur, 0, _LONGEST_US):
            self.num_damaged += 1
            return
        args = event.get("args")
        if type(args) is not dict:
            args = {}
        on_device = Kind.KERNEL <= kind <= Kind.FILL
        process, thread = event.get("pid"), event.get("tid")
        if on_device:
            process, thread = args.get("device", process), args.get("stream", thread)
        lane = (str(process), str(thread), on_device)
        self.ts_us.append(ts)
        self.dur_us.append(dur)
        self.kind.append(kind)
        self.name.append(self.names.setdefault(name, len(self.names)))
        self.lane.append(self.lanes.setdefault(lane, len(self.lanes)))
        self.correlation.append(_count(args.get("correlation")))
        self.num_bytes.append(_count(args.get("bytes")))

    def trace(self, file: TraceFile) -> Trace:
        """Build the trace, with times in whole nanoseconds from its first event.

        Kineto writes microseconds with three decimals. The floor of the first time is exact in floating point, and so
        is the difference to it. A thousand times this difference is off by less than half a nanosecond.
        """
        ts_us = np.frombuffer(self.ts_us)
        first_us = np.floor(ts_us.min())
        start_ns = np.rint((ts_us - first_us) * 1000).astype(np.int64)
        start_ns -= start_ns.min()
        end_ns = start_ns + np.rint(np.frombuffer(self.dur_us) * 1000).astype(np.int64)
        events = Events(
            start_ns,
            end_ns,
            np.array(self.kind, np.int8),
            np.array(self.name, np.int32),
            np.array(self.lane, np.int32),
            np.array(self.correlation, np.int64),
            np.array(self.num_bytes, np.int64),
        )
        lanes = tuple(Lane(*lane) for lane in self.lanes)
        return Trace(file.path, events, tuple(self.names), lanes, file.num_seen, self.num_python, self.num_damaged)


def _is_time(value: Any, low: float, high: float) -> TypeGuard[float]:
    return (type(value) is float or type(value) is int) and low <= value <= high


def _count(value: Any) -> int:
    """Return a whole number that fits 62 bits, or NONE."""
    return value if type(value) is int and 0 <= value < 1 << 62 else NONE


def _facts(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a trace's header says of devices and ranks, as far as it has the known form."""
    facts: dict[str, Any] = {}
    devices = header.get("deviceProperties")
    if isinstance(devices, list):
        known = [d for d in devices if isinstance(d, dict) and isinstance(d.get("name"), str)]
        facts["device_names"] = {str(d.get("id", i)): d["name"] for i, d in enumerate(known)}
    distributed = header.get("distributedInfo")
    if isinstance(distributed, dict):
        facts |= {k: v for k in ("rank", "world_size") if type(v := distributed.get(k)) is int}
    return facts
