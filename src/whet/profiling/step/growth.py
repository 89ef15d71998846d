"""Find whether a training loop holds more and more memory, from the bytes held at the end of each step.

On Linux with glibc, this is what malloc has handed out (mallinfo2). It is exact to the byte, while the resident set
stays constant as long as memory that was freed earlier is used again. Elsewhere it is the resident set. On a GPU it is
what the allocator has handed out.

Single steps mean nothing, because batches have unequal sizes and garbage is collected late. So the run is cut into
blocks, and only the least value of each block counts. Memory is said to grow if the 95% interval (Student's t) of the
mean rise from block to block is above zero: one jump is not enough, however large; a leak in the second half is.
"""

import ctypes
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import scipy
import torch

from whet.measure.memory import ResidentMemory

_MOST_POINTS = 512
# Reading memory may take one part in _SHARE of the run's time, and one part in _EARLY_SHARE for the first _EARLY reads.
# mallinfo2 goes through all free chunks. This takes 2 µs, 100 µs if the step has emptied the caches, or 500 µs in a
# process that has loaded much. The first reads, as many as a trend needs, are always made, so that a loop of a hundred
# short steps gets a trend: the first _FREE reads if they take at most _FREE_NS, otherwise the first _FREE_AT_ANY_COST.
_SHARE, _EARLY_SHARE, _EARLY = 2000, 500, 48
_FREE_AT_ANY_COST, _FREE, _FREE_NS = 20, 128, 20_000
_WARM_UP = 0.2  # this share of the run fills caches, optimiser state and lazily made buffers
_BLOCKS = 8
_LEAST_POINTS = 2 * _BLOCKS
_LEAST_SLOPE = 1024  # bytes per step; less is a list of numbers for a log, and no leak
_LEAST_RISE = {"heap": 2**15, "cuda": 2**15, "resident": 2**22}  # bytes over the run; pages come in large pieces


@dataclass(frozen=True)
class Growth:
    """Describe how the memory held changes from step to step.

    Attributes:
        source: "heap", "cuda" or "resident".
        slope_bytes: Growth per step.
        ci95_bytes: The 95% interval of the slope.
        rise_bytes: Growth from the first block to the last.
        first_step: The first step that was examined, after the warm-up.
    """

    source: str
    slope_bytes: float
    ci95_bytes: tuple[float, float]
    rise_bytes: int
    last_bytes: int
    first_step: int
    last_step: int
    is_growing: bool


class MemorySeries:
    """Sample one source of memory at the ends of steps. Of many points, each two neighbours become the lower one."""

    def __init__(self, source: str, read: Callable[[], int], now: Callable[[], int] = time.perf_counter_ns) -> None:
        self.source = source
        self.points: list[tuple[int, int]] = []
        self._read = read
        self._now = now
        self._due_ns = 0
        self._taken_ns: int | None = None
        self._num_looks = 0
        self._stride = 1
        self._pending: list[tuple[int, int]] = []

    def sample(self, step: int) -> None:
        """Read memory now, unless reading it would take more than its share of the time."""
        began = self._now()
        if began < self._due_ns:
            return
        self._pending.append((step, self._read()))
        if len(self._pending) >= self._stride:
            self.points.append(_lower(self._pending))
            self._pending.clear()
            if len(self.points) >= _MOST_POINTS:
                self.points = [_lower(self.points[i : i + 2]) for i in range(0, len(self.points), 2)]
                self._stride *= 2
        self._num_looks += 1
        ended = self._now()
        before, self._taken_ns = self._taken_ns, ended - began
        taken = min(self._taken_ns, before or self._taken_ns)  # one read may have been interrupted
        if self._num_looks > (_FREE if taken <= _FREE_NS else _FREE_AT_ANY_COST):
            self._due_ns = ended + (_EARLY_SHARE if self._num_looks < _EARLY else _SHARE) * taken


def growth(source: str, points: Sequence[tuple[int, int]]) -> Growth | None:
    """Compute the trend of memory from pairs of step and bytes held, in order; None if there are too few points."""
    if len(points) < _LEAST_POINTS:
        return None
    warm = points[0][0] + _WARM_UP * (points[-1][0] - points[0][0])
    kept = [point for point in points if point[0] >= warm]
    first, last = kept[0][0], kept[-1][0]
    if len(kept) < _BLOCKS:
        return None
    # Each block has as many points as the others, because later points are further apart.
    cuts = [index * len(kept) // _BLOCKS for index in range(_BLOCKS + 1)]
    blocks = [kept[start:end] for start, end in pairwise(cuts)]
    floors = [_lower(block) for block in blocks]
    pairs = [(after[0] - before[0], after[1] - before[1]) for before, after in pairwise(floors)]
    rise = floors[-1][1] - floors[0][1]
    slope = rise / (floors[-1][0] - floors[0][0])
    spread = math.sqrt(sum((more - slope * steps) ** 2 for steps, more in pairs) / (len(pairs) - 1))
    t = float(scipy.special.stdtrit(len(pairs) - 1, 0.975))
    half = t * spread * math.sqrt(len(pairs)) / (floors[-1][0] - floors[0][0])
    low, high = slope - half, slope + half
    return Growth(
        source=source,
        slope_bytes=slope,
        ci95_bytes=(low, high),
        rise_bytes=rise,
        last_bytes=kept[-1][1],
        first_step=first,
        last_step=last,
        is_growing=low > 0 and slope >= _LEAST_SLOPE and rise >= _LEAST_RISE.get(source, 0),
    )


def memory_series(device: str) -> list[MemorySeries]:
    """Return the series that can be sampled here: the process's heap or its resident set, and the GPU's allocator."""
    heap = heap_reader()
    series = [MemorySeries("heap", heap) if heap is not None else MemorySeries("resident", ResidentMemory())]
    if device == "cuda":
        series.append(MemorySeries("cuda", torch.cuda.memory_allocated))
    return series


def heap_reader() -> Callable[[], int] | None:
    """Return a reader of the bytes that malloc has handed out; None without mallinfo2, or with another allocator."""
    try:
        mallinfo2 = ctypes.PyDLL(None).mallinfo2  # PyDLL keeps the GIL, because getting it back may take long
    except (OSError, AttributeError, TypeError):
        return None
    mallinfo2.restype = _Mallinfo2

    def read() -> int:
        info = mallinfo2()
        return int(info.uordblks) + int(info.hblkhd)

    before = read()
    held = torch.empty(2**21, dtype=torch.uint8)  # glibc does not count it if another allocator replaces malloc
    return read if read() - before >= held.nbytes else None


class _Mallinfo2(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def _lower(points: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return min(points, key=lambda point: point[1])
