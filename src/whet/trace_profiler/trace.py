"""A trace that torch.profiler (Kineto) recorded, here or elsewhere: its events as columns.

Kineto names what an event is in its "cat". Names have changed over the years and differ from vendor to vendor; KINDS
holds those of PyTorch 1.8 to 2.13 on CUDA, ROCm, Intel and out-of-tree devices.
"""

import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from whet.errors import TraceError
from whet.trace_profiler.file import TraceFile

_MOST_EVENTS = 5_000_000
_LATEST_US = 4e15  # of a time stamp: the year 2096
_LONGEST_US = 1e14  # of a duration: three years
_STEP = re.compile(r"ProfilerStep#(\d+)")
NONE = -1  # no correlation, no bytes


class Kind(IntEnum):
    """What an event is."""

    OPERATOR = 0  # on a CPU thread, as aten::mm
    ANNOTATION = 1  # on a CPU thread: record_function, steps of the profiler, collectives that were called
    RUNTIME = 2  # on a CPU thread: a call of the CUDA, HIP or other runtime or driver
    KERNEL = 3  # on a device
    COPY = 4  # on a device: a copy of memory
    FILL = 5  # on a device: memory set to a value
    OVERHEAD = 6  # the profiler's own
    COUNTED = 7  # CUPTI's profiler ranges: kernels with counters, but without true times
    PYTHON = 8  # a Python function; only counted


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
    """Events as columns of one length, in the order of the file. Times count from the trace's first event."""

    start_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    kind: npt.NDArray[np.int8]
    name: npt.NDArray[np.int32]  # index into Trace.names
    lane: npt.NDArray[np.int32]  # index into Trace.lanes
    correlation: npt.NDArray[np.int64]  # links a runtime call to what it started on a device; NONE without
    num_bytes: npt.NDArray[np.int64]  # of a copy or fill; NONE where it is not said

    def __len__(self) -> int:
        return len(self.start_ns)

    def __getitem__(self, which: npt.NDArray[Any]) -> "Events":
        """The events under a mask, or at indices."""
        return Events(
            self.start_ns[which],
            self.end_ns[which],
            self.kind[which],
            self.name[which],
            self.lane[which],
            self.correlation[which],
            self.num_bytes[which],
        )

    @property
    def duration_ns(self) -> npt.NDArray[np.int64]:
        return self.end_ns - self.start_ns

    def of(self, *kinds: Kind) -> "Events":
        return self[np.isin(self.kind, kinds)]


@dataclass(frozen=True)
class Lane:
    """Where events run one after another: a thread of a process, or a stream of a device."""

    process: str  # of a stream: the device's number
    thread: str  # of a stream: the stream's number
    on_device: bool


@dataclass(frozen=True)
class Trace:
    """One trace. num_seen: all events in the file, those that are left out here included.

    num_python: Python functions, recorded with with_stack. num_damaged: events without a usable time or name.
    """

    path: Path
    events: Events
    names: tuple[str, ...]
    lanes: tuple[Lane, ...]
    num_seen: int
    num_python: int = 0
    num_damaged: int = 0
    device_names: Mapping[str, str] = field(default_factory=dict)  # device's number -> "NVIDIA A100-PG509-200"
    rank: int | None = None
    world_size: int | None = None

    def name_of(self, index: int) -> str:
        return self.names[index]

    def names_matching(self, pattern: str) -> npt.NDArray[np.bool_]:
        """For each name, whether it matches a regular expression from its start."""
        compiled = re.compile(pattern)
        return np.array([compiled.match(name) is not None for name in self.names], bool)

    def named(self, events: Events, pattern: str) -> Events:
        """The events whose name matches a regular expression from its start."""
        return events[self.names_matching(pattern)[events.name]] if len(events) else events

    def steps(self) -> Events:
        """The profiler's steps (ProfilerStep#N), in order of time; not those of processes that ran no operator."""
        steps = self.named(self.events.of(Kind.ANNOTATION, Kind.OPERATOR), _STEP.pattern)
        steps = self.beside_operators(steps)
        return steps[np.argsort(steps.start_ns, kind="stable")]

    def beside_operators(self, events: Events) -> Events:
        """The events in processes that ran operators or runtime calls; all of them, where none did."""
        calls = self.events.of(Kind.OPERATOR, Kind.RUNTIME)
        processes = {self.lanes[lane].process for lane in np.unique(calls.lane)}
        if not processes:
            return events
        return events[np.array([lane.process in processes for lane in self.lanes])[events.lane]]

    def step_number(self, name: int) -> int:
        """The N of ProfilerStep#N."""
        found = _STEP.match(self.names[name])
        assert found is not None
        return int(found.group(1)[:18])


def read_trace(path: Path | str) -> Trace:
    """Read a trace as torch.profiler's export_chrome_trace writes it, plain or gzip.

    Memory grows by about 60 bytes an event, however large the file is. Raises TraceError where the file is damaged, cut
    off, no JSON, or not PyTorch's.
    """
    file = TraceFile(Path(path))
    columns = _Columns()
    for event in file:
        columns.add(event)
        if len(columns.ts_us) > _MOST_EVENTS:
            raise TraceError(f"{path}: holds more than {_MOST_EVENTS:,} events; record fewer steps")
    if not columns.ts_us:
        raise TraceError(
            f"{path}: none of its {file.num_seen:,} events is PyTorch's (operators, kernels, calls of the runtime); "
            "traces by torch.profiler are read"
        )
    trace = columns.trace(file)
    return replace(trace, **_facts(file.header))


class _Columns:
    """Events on their way from JSON to columns."""

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
        """Keep an event if it is of a known kind, whole, and has times that can be."""
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
        """The columns, with times in whole nanoseconds from the first event on.

        Kineto writes microseconds with three decimals. The floor of the first is exact in floating point, and so is
        the difference to it; its thousandfold is off by less than half.
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
    """A whole number that fits, or NONE."""
    return value if type(value) is int and 0 <= value < 1 << 62 else NONE


def _facts(header: Mapping[str, Any]) -> dict[str, Any]:
    """What the head of a trace says of devices and ranks, as far as it can be understood."""
    facts: dict[str, Any] = {}
    devices = header.get("deviceProperties")
    if isinstance(devices, list):
        known = [d for d in devices if isinstance(d, dict) and isinstance(d.get("name"), str)]
        facts["device_names"] = {str(d.get("id", i)): d["name"] for i, d in enumerate(known)}
    distributed = header.get("distributedInfo")
    if isinstance(distributed, dict):
        facts |= {k: v for k in ("rank", "world_size") if type(v := distributed.get(k)) is int}
    return facts
