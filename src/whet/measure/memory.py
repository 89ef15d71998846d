"""Measure memory: peak resident set of a process, bytes of live tensors, and the CUDA allocator's peak."""

import contextlib
import gc
import os
import re
import resource
import sys
from pathlib import Path

import psutil
import torch

from whet.measure.cgroup import memory_limit
from whet.measure.malloc import give_back

_STATUS = Path("/proc/self/status")
_STATM = Path("/proc/self/statm")
_SMAPS = Path("/proc/self/smaps")
_LIBRARY = re.compile(r"\.so(?:\.[\d.]+)?(?: \(deleted\))?$")
_EXECUTABLE = str(Path(sys.executable).resolve())
_CLEAR_REFS = Path("/proc/self/clear_refs")


class ResidentMemory:
    """Reads the resident memory of this process, in about a microsecond on Linux. Call it; close it."""

    _file = -1  # where there is none, psutil reads

    def __init__(self) -> None:
        if _STATM.exists():
            self._file = os.open(_STATM, os.O_RDONLY)
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._process = psutil.Process()

    def __call__(self) -> int:
        """Return the resident memory of the process in bytes."""
        if self._file >= 0:
            return int(os.pread(self._file, 64, 0).split(b" ", 2)[1]) * self._page_bytes
        return int(self._process.memory_info().rss)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def __del__(self) -> None:
        self.close()


def peak_rss_bytes() -> int:
    """The most memory this process has held since it started, or since `reset_peak_rss`."""
    if _STATUS.exists():
        for line in _STATUS.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage counts bytes on macOS, kilobytes elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def library_bytes() -> int:
    """Return the resident pages of this process's executable and of shared libraries; 0 where the system is silent."""
    total, is_library = 0, False
    with contextlib.suppress(OSError):
        for line in _SMAPS.read_text(encoding="utf-8", errors="replace").splitlines():
            if "-" in line[:20]:  # a mapping's first line: its addresses, and its file
                is_library = _LIBRARY.search(line) is not None or line.endswith(_EXECUTABLE)
            elif is_library and line.startswith("Rss:"):
                total += int(line.split()[1]) * 1024
    return total


class TakenMemory:
    """Measure the most memory that this process takes beside what it holds when this object is made.

    Pages of libraries do not count: the kernel maps them as code runs, in a fork also those that its parent had mapped.
    """

    def __init__(self) -> None:
        reset_peak_rss()  # what imports needed for a moment is no part of it
        self._before = peak_rss_bytes() - library_bytes()

    def peak_bytes(self) -> int:
        """Return the peak in bytes, since this object was made or since `reset_peak_rss`."""
        return max(0, peak_rss_bytes() - library_bytes() - self._before)


def free_bytes(*, with_swap: bool = False) -> int:
    """Return the memory that this process may still take, within a container's limit."""
    free = int(psutil.virtual_memory().available)
    if with_swap:
        free += int(psutil.swap_memory().free)
    limit = memory_limit()
    return free if limit is None else min(free, limit - psutil.Process().memory_info().rss)


def bare_process() -> dict[str, int]:
    """Return the peak memory of a process that has imported torch and done nothing, for run_isolated."""
    return {"peak_bytes": peak_rss_bytes()}


def begin_peak() -> None:
    """Collect garbage and return freed memory to the system, so that the peak is that of what comes now."""
    gc.collect()
    give_back()
    reset_peak_rss()


def reset_peak_rss() -> bool:
    """Start the peaks anew from what is held now: the process's, and the CUDA allocator's where it is in use.

    Returns False where the system cannot do it for the process (all but Linux).
    """
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
    try:
        _CLEAR_REFS.write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def live_tensor_bytes() -> int:
    """Bytes of all tensors Python can reach; storages shared by several tensors count once.

    Tensors without memory of their own (meta, fake, and wrappers around other tensors) count nothing.
    """
    seen: dict[int, int] = {}
    for thing in gc.get_objects():
        # Not isinstance: it asks for __class__, which runs code of proxies and of modules that warn when looked at.
        if not issubclass(type(thing), torch.Tensor) or thing.layout != torch.strided:
            continue
        with contextlib.suppress(RuntimeError):  # a wrapper's storage is invalid, or not to be had at all
            storage = thing.untyped_storage()
            if storage.device.type != "meta":  # a fake tensor's is meta, whatever device the tensor says
                seen[storage.data_ptr()] = storage.nbytes()
    return sum(seen.values())


def cuda_peak_bytes() -> int | None:
    """Return the CUDA allocator's peak in bytes since the start, or `reset_peak_rss`; None where no GPU is in use."""
    return torch.cuda.max_memory_allocated() if torch.cuda.is_initialized() else None
