"""Read from Linux's control groups how many cores and how much memory a container may use."""

import math
from collections.abc import Iterator
from pathlib import Path

import psutil

_ROOT = Path("/sys/fs/cgroup")
_SELF = Path("/proc/self/cgroup")


def cpu_quota(root: Path = _ROOT, self_file: Path = _SELF) -> int | None:
    """Return the number of cores whose time this process may use, rounded up; None without a limit."""
    quotas = []
    for directory in _directories("cpu", root, self_file):
        words = _read(directory / "cpu.max").split()  # version 2: "200000 100000", or "max 100000"
        if not words:  # version 1: two files, -1 for no limit
            words = [_read(directory / "cpu.cfs_quota_us"), _read(directory / "cpu.cfs_period_us")]
        if len(words) == 2 and all(w.isdecimal() and int(w) > 0 for w in words):
            quotas.append(math.ceil(int(words[0]) / int(words[1])))
    return min(quotas, default=None)


def memory_limit(root: Path = _ROOT, self_file: Path = _SELF) -> int | None:
    """Return the bytes that this process may use; None without a limit.

    Control groups of version 1 write a huge number where there is no limit.
    """
    limits = []
    for directory in _directories("memory", root, self_file):
        text = _read(directory / "memory.max") or _read(directory / "memory.limit_in_bytes")
        if text.isdecimal() and int(text) < 2**60:
            limits.append(int(text))
    return min(limits, default=None)


def free_memory() -> int:
    """Return the bytes of memory that are free, within this process's limit."""
    available: int = psutil.virtual_memory().available
    limit = memory_limit()
    return available if limit is None else min(available, limit)


def cpu_stat_files(root: Path = _ROOT, self_file: Path = _SELF) -> list[Path]:
    """Return the files that count how long this process's groups were kept from running by their CPU quota."""
    found = (directory / "cpu.stat" for directory in _directories("cpu", root, self_file))
    return [path for path in dict.fromkeys(found) if "throttled" in _read(path)]


def throttled_s(cpu_stat: str) -> float:
    """Return the seconds of throttling that the text of a `cpu.stat` file reports, in either version of cgroups."""
    counts = dict(line.split()[:2] for line in cpu_stat.splitlines() if len(line.split()) >= 2)
    if "throttled_usec" in counts:  # version 2
        return int(counts["throttled_usec"]) / 1e6
    return int(counts.get("throttled_time", 0)) / 1e9  # version 1


def _directories(controller: str, root: Path, self_file: Path) -> Iterator[Path]:
    """Yield the directories that may hold limits on this process: its group and those around it, in either version."""
    yield root
    yield root / controller
    for line in _read(self_file).splitlines():
        if line.count(":") < 2:
            continue
        number, controllers, path = line.split(":", 2)
        top = root if number == "0" else root / controllers
        if number == "0" or controller in controllers.split(","):
            group = top / path.lstrip("/")
            while group != top and top in group.parents:
                yield group
                group = group.parent
            yield top


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
