"""Find what a trace's GPUs did: busy and idle time, compute and communication kernels, copies, and what overlapped."""

import re
from dataclasses import dataclass
from enum import StrEnum
from itertools import repeat

import numpy as np
import numpy.typing as npt

from whet.profiling.trace.intervals import EMPTY, Intervals, union
from whet.profiling.trace.trace import NONE, ON_DEVICE, Events, Kind, Trace

# NCCL, RCCL and similar libraries, and the all-reduce kernels of vLLM and of PyTorch's symmetric memory
_COMMUNICATION = (
    r"(?i).*(?:nccl|rccl|msccl|oneccl|nvshmem|cross_device_reduce|(?:one|two)_shot_all_reduce|multimem_all_reduce)"
)


class Use(StrEnum):
    """Name what a GPU is used for."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    COPY = "copy"  # copies and fills of memory


@dataclass(frozen=True)
class DeviceTime:
    """Describe all runs of one kernel or kind of copy. `num_bytes` is what copies moved; None if it is unknown."""

    name: str
    use: Use
    calls: int
    total_ns: int
    longest_ns: int
    num_bytes: int | None = None

    @property
    def bytes_per_s(self) -> float | None:
        """Return the bytes per second of a copy; None if its bytes are unknown."""
        return self.num_bytes / self.total_ns * 1e9 if self.num_bytes is not None and self.total_ns else None


@dataclass(frozen=True)
class DeviceUse:
    """Describe the use of one device within the window. Kernels that run at the same time count once.

    Attributes:
        device: The device's number.
        name: The device's name; "" if unknown.
        busy_ns: How long anything ran.
        copy_ns: How long copies and fills ran.
        communication_hidden_ns: How long communication and compute kernels ran at the same time.
        copy_hidden_ns: How long copies and compute kernels ran at the same time.
    """

    device: str
    name: str
    num_streams: int
    window_ns: int
    busy_ns: int
    compute_ns: int
    communication_ns: int
    copy_ns: int
    communication_hidden_ns: int
    copy_hidden_ns: int

    @property
    def idle_ns(self) -> int:
        return self.window_ns - self.busy_ns


@dataclass(frozen=True)
class DeviceIntervals:
    """Hold when one device was used within the window, for each use."""

    device: str
    num_streams: int
    compute: Intervals
    communication: Intervals
    copy: Intervals

    @property
    def busy(self) -> Intervals:
        return self.compute | self.communication | self.copy


def use_of(trace: Trace, events: Events) -> npt.NDArray[np.int8]:
    """Return the index in Use of each event on a device."""
    is_communication = trace.names_matching(_COMMUNICATION)[events.name]
    return np.where(events.kind != Kind.KERNEL, 2, np.where(is_communication, 1, 0)).astype(np.int8)


def device_intervals(trace: Trace, window: Intervals) -> list[DeviceIntervals]:
    """Return when each device was used, the busiest device first."""
    events = trace.events.of(*ON_DEVICE)
    uses = use_of(trace, events)
    devices = np.array([lane.process if lane.on_device else "" for lane in trace.lanes])[events.lane]
    found = []
    for device in np.unique(devices):
        here = devices == device
        parts = [
            union(events.start_ns[here & (uses == use)], events.end_ns[here & (uses == use)]) & window
            for use in range(len(Use))
        ]
        found.append(DeviceIntervals(str(device), len(np.unique(events.lane[here])), *parts))
    return sorted(found, key=lambda use: -use.busy.length_ns)


def device_use(trace: Trace, used: DeviceIntervals, window: Intervals) -> DeviceUse:
    return DeviceUse(
        device=used.device,
        name=trace.device_names.get(used.device, ""),
        num_streams=used.num_streams,
        window_ns=window.length_ns,
        busy_ns=used.busy.length_ns,
        compute_ns=used.compute.length_ns,
        communication_ns=used.communication.length_ns,
        copy_ns=used.copy.length_ns,
        communication_hidden_ns=(used.communication & used.compute).length_ns,
        copy_hidden_ns=(used.copy & used.compute).length_ns,
    )


def device_times(trace: Trace) -> tuple[DeviceTime, ...]:
    """Return every kernel, copy and fill by name over the whole trace, the one with the most time first.

    Totals are sums, so kernels that run at the same time count separately.
    """
    events = trace.events.of(*ON_DEVICE)
    uses = use_of(trace, events)
    found = []
    for use_index, use in enumerate(Use):
        some = events[uses == use_index]
        by_name, took_ns = some.by_name(), some.duration_ns
        sizes = map(_copied, by_name.each(some.num_bytes)) if use is Use.COPY else repeat(None, len(by_name.names))
        figures = (by_name.names, by_name.counts, by_name.sums(took_ns), by_name.largest(took_ns))
        rows = zip(*(column.tolist() for column in figures), sizes, strict=True)
        found += [
            DeviceTime(trace.names[name], use, calls, total_ns, longest_ns, num_bytes)
            for name, calls, total_ns, longest_ns, num_bytes in rows
        ]
    return tuple(sorted(found, key=lambda time: (-time.total_ns, time.name)))


def _copied(sizes: npt.NDArray[np.int64]) -> int | None:
    """Return the bytes of some copies; None where one does not say them."""
    return sum(sizes.tolist()) if (sizes != NONE).all() else None


def total_of(used: list[DeviceIntervals]) -> Intervals:
    """Return when any of these devices was busy."""
    busy = EMPTY
    for device in used:
        busy |= device.busy
    return busy


def short_name(kernel: str) -> str:
    """Shorten a kernel's name: cut the return type, namespaces and argument list that most names share.

    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, …>(int, …)" becomes
    "vectorized_elementwise_kernel<4, CUDAFunctor_add<float>, …>".
    """
    name = _without_arguments(kernel.removeprefix("void "))
    name = re.sub(r"\((?:anonymous namespace|\w+)\)::", "", name)
    return re.sub(r"\b(?:[A-Za-z_]\w*::)+(?=[A-Za-z_{~])", "", name)


def _without_arguments(name: str) -> str:
    """Cut a name at the first bracket directly after it, outside of <>. "Memset (Device)" has no arguments."""
    depth = 0
    for at, character in enumerate(name):
        if character == "<":
            depth += 1
        elif character == ">" and name[at - 1 : at] != "-":
            depth -= 1
        elif character == "(" and depth == 0 and at and name[at - 1] not in ": ":
            return name[:at]
    return name
