"""Measure how fast memory can be read, for each size of working set.

A small C++ loop reads it. The machine's compiler compiles the loop. A model whose weights fit in a cache reads them
from there at every call, so one figure for main memory is not enough.
"""

import contextlib
import ctypes
import math
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from whet.errors import MachineError
from whet.measure.cgroup import memory_limit
from whet.measure.machine.cache import cache_dir, last_level_bytes

_SOURCE = Path(__file__).with_name("bandwidth.cpp")
_COMPILERS = ("c++", "g++", "clang++")
_OTHER_COMPILER = "name another compiler in CXX"
_FLAGS = ("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC", "-pthread")
_SMALLEST = 256 * 2**10
_PART = 32 * 2**20  # read in less than a millisecond or two, so that other processes seldom fall into a run

_LONGEST_S = 1.0  # of rounds over one working set

# Reads `bytes` at an offset of a buffer, so many times; returns bytes per second.
Read = Callable[[int, int, int], float]


@dataclass(frozen=True)
class Bandwidth:
    """Hold the measured read bandwidth.

    Attributes:
        memory: Bytes/s for a working set far larger than the caches.
        cached: Pairs of working set in bytes and bytes/s, smallest first. The bandwidth never rises with the size.
    """

    memory: float
    cached: tuple[tuple[int, float], ...]
    notes: tuple[str, ...] = ()


def read_bandwidth(num_threads: int, *, buffer_bytes: int | None = None, num_rounds: int = 12) -> Bandwidth:
    """Measure it with `num_threads` reading at once; the best of `num_rounds` counts for each part.

    Without a compiler, torch's own reads are timed instead, and a note says so: they show less than there is.
    """
    size = buffer_bytes or default_buffer_bytes()
    with _buffer(size) as buffer:
        notes: tuple[str, ...] = ()
        try:
            read = _compiled_read(buffer, num_threads)
        except MachineError as error:
            read = _torch_read(buffer)
            notes = (f"read bandwidth is that of torch.sum, less than there is: {error}",)
        return Bandwidth(_speed(read, size, num_rounds), _by_working_set(read, size, num_rounds), notes)


def default_buffer_bytes() -> int:
    """Return the buffer's size in bytes: three times the last-level cache, but at least 512 MiB.

    It is at most a quarter of the free memory, or of the memory that a container may still use.
    """
    wanted = max(512 * 2**20, 3 * last_level_bytes())
    free = min(psutil.virtual_memory().available, memory_limit() or sys.maxsize)
    return max(_SMALLEST, min(wanted, free // 4))


def non_increasing(points: list[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """Points by size, where each is at least as fast as any larger one: a small set can be read as fast as a large."""
    best = 0.0
    result = []
    for size, speed in sorted(points, reverse=True):
        best = max(best, speed)
        result.append((size, best))
    return tuple(reversed(result))


def _by_working_set(read: Read, size: int, num_rounds: int) -> tuple[tuple[int, float], ...]:
    """Return the bandwidth of working sets that double in size, each read again and again."""
    powers = range(int(math.log2(max(1, size / _SMALLEST))))
    return non_increasing([(_SMALLEST << i, _speed(read, _SMALLEST << i, num_rounds)) for i in powers])


def _speed(read: Read, working_set: int, num_rounds: int) -> float:
    """Return the bytes/s of a working set that is read round after round, part by part.

    Each part counts with its best round, so that a busy machine disturbs little. All parts count, so that a set that
    fits in a cache only in part does not look like one that fits.
    """
    part = min(working_set, _PART)
    passes = _PART // part
    offsets = range(0, working_set - part + 1, part)
    best = dict.fromkeys(offsets, 0.0)
    end = time.perf_counter() + _LONGEST_S
    for round_number in range(num_rounds + 1):
        if round_number > 1 and time.perf_counter() > end:
            break
        for offset in offsets:
            speed = read(offset, part, passes)
            if round_number:  # the first one fills the caches
                best[offset] = max(best[offset], speed)
    return len(best) / sum(1 / speed for speed in best.values())


def _compiled_read(buffer: torch.Tensor, num_threads: int) -> Read:
    library = _compile()
    whet_read = library.whet_read
    whet_read.restype = ctypes.c_size_t
    whet_read.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
    seconds = ctypes.c_double()

    def read(offset: int, size: int, passes: int) -> float:
        got = whet_read(buffer.data_ptr() + offset, size, num_threads, passes, ctypes.byref(seconds))
        return float(got) * passes / seconds.value

    return read


def _torch_read(buffer: torch.Tensor) -> Read:
    words = buffer.view(torch.float32)

    def read(offset: int, size: int, passes: int) -> float:
        part = words[offset // 4 : (offset + size) // 4]
        start = time.perf_counter()
        for _ in range(passes):
            part.sum()
        return size * passes / (time.perf_counter() - start)

    return read


def _compile() -> ctypes.CDLL:
    """Build and load the loop, or raise MachineError where there is no compiler, or it failed."""
    compiler = next(
        (found for name in (os.environ.get("CXX"), *_COMPILERS) if name and (found := shutil.which(name))), ""
    )
    if not compiler:
        raise MachineError(
            f"no C++ compiler found ({', '.join(_COMPILERS)}, or the one that CXX names); install one (Debian: apt "
            "install g++)"
        )
    with contextlib.suppress(OSError):  # then a temporary directory of the system's serves
        cache_dir().mkdir(parents=True, exist_ok=True)
    place = cache_dir() if os.access(cache_dir(), os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="compile-", dir=place) as directory:
        library = Path(directory) / "bandwidth.so"
        try:
            subprocess.run(
                [compiler, *_FLAGS, str(_SOURCE), "-o", str(library)], check=True, capture_output=True, timeout=60
            )
            return ctypes.CDLL(str(library))
        except subprocess.CalledProcessError as error:
            lines = error.stderr.decode(errors="replace").strip().splitlines()
            raise MachineError(f"{compiler} failed: {lines[0] if lines else error}; {_OTHER_COMPILER}") from error
        except (subprocess.TimeoutExpired, OSError) as error:
            raise MachineError(f"{compiler} failed: {error}; {_OTHER_COMPILER}") from error


@contextlib.contextmanager
def _buffer(size: int) -> Iterator[torch.Tensor]:
    """Yield memory that has been written once. Pages that were never written would all map to one page of zeros."""
    memory = mmap.mmap(-1, size)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    try:
        yield tensor.fill_(1)
    finally:
        del tensor  # the map goes with its last reference
