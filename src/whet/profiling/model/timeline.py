"""Record memory over time, with a thread that samples it and keeps a bounded number of points.

On CPUs it is resident memory. On CUDA it is also what the allocator has given out and what it has reserved.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from whet.measure.memory import ResidentMemory, peak_rss_bytes, reset_peak_rss

_INTERVAL_S = 0.005
_MOST_POINTS = 2000


@dataclass(frozen=True)
class MemoryPoint:
    """Describe what was held `at_s` seconds after the profile began. CUDA's bytes are None without CUDA."""

    at_s: float
    rss_bytes: int
    cuda_allocated_bytes: int | None = None
    cuda_reserved_bytes: int | None = None


@dataclass(frozen=True)
class MemoryUse:
    """Describe the memory of a run.

    Attributes:
        device: Whose memory the start, end and peak are: "cpu" (resident) or "cuda" (allocated).
        is_peak_exact: Whether the peak was kept by the system (VmHWM on Linux) or by CUDA's allocator. Otherwise it is
            the highest point that was sampled.
    """

    device: str
    start_bytes: int
    end_bytes: int
    peak_bytes: int
    is_peak_exact: bool
    points: tuple[MemoryPoint, ...] = ()


class Timeline:
    """Sample memory every few milliseconds between `start()` and `stop()`.

    When its 2,000 points are full, every second one is dropped, and samples are taken half as often.

    Args:
        device: "cpu" or "cuda".
        interval_s: Seconds between two samples at first.
        seen: Called with each sample, in bytes held on `device`.
    """

    def __init__(
        self, device: str = "cpu", *, interval_s: float = _INTERVAL_S, seen: Callable[[int], None] | None = None
    ) -> None:
        self.read_rss = ResidentMemory()
        self._device = device
        self._interval_s = interval_s
        self._seen = seen
        self._points: list[MemoryPoint] = []
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None
        self._start_s = 0.0
        self._has_exact_peak = False
        self._gpu = 0

    def start(self) -> None:
        self._has_exact_peak = reset_peak_rss()
        if self._device == "cuda":
            self._gpu = torch.cuda.current_device()  # the sampling thread's current GPU would be number 0
            torch.cuda.reset_peak_memory_stats(self._gpu)
        self._start_s = time.perf_counter()
        self._take()
        self._thread = threading.Thread(target=self._sample, name="whet-memory", daemon=True)
        self._thread.start()

    def stop(self) -> MemoryUse:
        self._ends.set()
        if self._thread is not None:
            self._thread.join()
        self._take()
        self.read_rss.close()
        points = tuple(self._points)
        held = [self._held(point) for point in points]
        if self._device == "cuda":
            peak, exact = int(torch.cuda.max_memory_allocated(self._gpu)), True
        elif self._has_exact_peak:
            peak, exact = peak_rss_bytes(), True
        else:
            peak, exact = 0, False
        # The system keeps only one peak, and another profile may have reset it meanwhile.
        return MemoryUse(self._device, held[0], held[-1], max(peak, *held), exact, points)

    def _sample(self) -> None:
        while not self._ends.wait(self._interval_s):
            self._take()
            if len(self._points) >= _MOST_POINTS:
                self._points = self._points[::2]
                self._interval_s *= 2

    def _take(self) -> None:
        at_s, rss = time.perf_counter() - self._start_s, self.read_rss()
        if self._device == "cuda":
            allocated, reserved = torch.cuda.memory_allocated(self._gpu), torch.cuda.memory_reserved(self._gpu)
            point = MemoryPoint(at_s, rss, int(allocated), int(reserved))
        else:
            point = MemoryPoint(at_s, rss)
        self._points.append(point)
        if self._seen is not None:
            self._seen(self._held(point))

    def _held(self, point: MemoryPoint) -> int:
        return point.rss_bytes if point.cuda_allocated_bytes is None else point.cuda_allocated_bytes


@dataclass(frozen=True)
class Fragmentation:
    """Describe how fragmented the CUDA allocator's memory is.

    Attributes:
        free_bytes: Reserved memory that is free.
        largest_free_bytes: The largest free block. A larger allocation needs new memory from the device, even if
            `free_bytes` would suffice.
    """

    reserved_bytes: int
    allocated_bytes: int
    free_bytes: int
    largest_free_bytes: int
    num_segments: int

    @property
    def fragmented(self) -> float:
        """Return the share of the free bytes outside the largest free block; 0 if nothing is free."""
        return 1 - self.largest_free_bytes / self.free_bytes if self.free_bytes else 0.0


def fragmentation(segments: list[dict[str, Any]]) -> Fragmentation:
    """Compute the fragmentation from the allocator's segments, as torch.cuda.memory_snapshot() returns them."""
    free = [int(block["size"]) for segment in segments for block in segment["blocks"] if block["state"] == "inactive"]
    return Fragmentation(
        reserved_bytes=sum(int(segment["total_size"]) for segment in segments),
        allocated_bytes=sum(int(segment["allocated_size"]) for segment in segments),
        free_bytes=sum(free),
        largest_free_bytes=max(free, default=0),
        num_segments=len(segments),
    )


def cuda_fragmentation() -> Fragmentation | None:
    """Return the fragmentation of CUDA's memory, or None if no GPU is in use."""
    return fragmentation(torch.cuda.memory_snapshot()) if torch.cuda.is_initialized() else None
