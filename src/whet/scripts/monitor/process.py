"""Measure CPU time and resident memory of a process and all processes that it started, and of the whole machine."""

import contextlib
import os
import time
from pathlib import Path

import psutil

from whet.measure.cores import allowed_cores
from whet.scripts.monitor import metrics
from whet.scripts.monitor.series import Cell

_PROC = Path("/proc")
_LIST_S = 5.0  # seconds between calls of psutil for a tree, because each reads every process of the machine


class ProcessCollector:
    """Measure what the process tree below `pid`, the root included, and the machine used since the last call."""

    def __init__(self, pid: int) -> None:
        self.unavailable: dict[str, str] = {}
        self._tree = _Tree(pid)
        self._known: dict[int, psutil.Process] = {}
        self._busy_s: dict[int, float] = {}
        self._machine = psutil.cpu_times()
        self._sampled = time.monotonic()
        self.collect()

    def collect(self) -> dict[str, Cell]:
        """Return the cells of CPU and memory. Those of the process tree are missing once it has ended."""
        now = time.monotonic()
        elapsed_s, self._sampled = now - self._sampled, now
        cells = self._of_machine()
        used_s, rss = self._of_tree()
        if rss:
            cells[metrics.RSS] = Cell.of(rss)
            if elapsed_s > 0:
                share = 100 * used_s / (elapsed_s * len(allowed_cores()))
                cells[metrics.CPU] = Cell.of(min(share, 100.0), elapsed_s)
        return cells

    def _of_machine(self) -> dict[str, Cell]:
        before, self._machine = self._machine, psutil.cpu_times()
        total_s = sum(self._machine) - sum(before)
        idle_s = _idle_s(self._machine) - _idle_s(before)
        memory = psutil.virtual_memory()
        cells = {metrics.MACHINE_MEMORY: Cell.of(memory.total - memory.available)}
        if total_s > 0:
            cells[metrics.MACHINE_CPU] = Cell.of(min(max(100 * (1 - idle_s / total_s), 0.0), 100.0), total_s)
        return cells

    def _of_tree(self) -> tuple[float, int]:
        """Return the seconds of CPU time since the last call, and the resident bytes now."""
        used_s, rss = 0.0, 0
        busy: dict[int, float] = {}
        processes = {pid: self._known.get(pid) or _process(pid) for pid in self._tree.pids()}
        self._known = {pid: process for pid, process in processes.items() if process is not None}
        for pid, process in self._known.items():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                busy[pid] = times.user + times.system
                rss += process.memory_info().rss
                # All the CPU time of a new process is in this interval, because it did not exist at the last call.
                used_s += busy[pid] - self._busy_s.get(pid, 0.0)
        self._busy_s = busy
        return used_s, rss


class _Tree:
    """List a process and all that it started, from the kernel's lists of children if there are any, or from psutil."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._pids = [pid]
        self._listed = -_LIST_S
        self._has_list = (_PROC / str(pid) / "task" / str(pid) / "children").exists()

    def pids(self) -> list[int]:
        if self._has_list:
            found = [self._pid]
            for pid in found:  # `found` grows during the loop
                found.extend(_children(pid))
            return found
        now = time.monotonic()
        if now >= self._listed + _LIST_S:
            self._listed = now
            with contextlib.suppress(psutil.Error):
                children = psutil.Process(self._pid).children(recursive=True)
                self._pids = [self._pid, *(child.pid for child in children)]
        return self._pids


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):  # the process or the thread has ended
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - iterdir makes an object a thread, every second
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:  # noqa: PTH123
                found.extend(map(int, file.read().split()))
    return found


def _process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.Error:
        return None


def _idle_s(times: object) -> float:
    return float(getattr(times, "idle", 0.0)) + float(getattr(times, "iowait", 0.0))
