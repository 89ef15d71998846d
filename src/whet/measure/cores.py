"""Find the cores that this process may run on, divide them among processes, and keep to some of them."""

import os
import re
from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path

NODES = Path("/sys/devices/system/node")
_CORES = Path("/sys/devices/system/cpu")


def allowed_cores() -> frozenset[int]:
    """Return the numbers of the cores that this process may run on: all, where the system cannot bind it to some."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def bind_thread(cores: Collection[int]) -> None:
    """Let the calling thread, and those that it starts later, run on these cores alone, where the system can do so."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def core_shares(number: int, cores: Collection[int], directory: Path = NODES) -> list[tuple[int, ...]]:
    """Divide cores among so many processes, of which each gets at least one.

    No process gets cores of two NUMA nodes where there are at least as many processes as nodes. With fewer processes,
    each gets whole nodes. Cores that share a physical core stay together where the numbers allow it.

    Args:
        number: How many processes; at most as many as cores.
        cores: The numbers of the cores.
        directory: Where the system lists the NUMA nodes.
    """
    nodes = _nodes(cores, directory)
    if number <= len(nodes):
        groups: list[list[int]] = [[] for _ in range(number)]
        for node in sorted(nodes, key=len, reverse=True):
            min(groups, key=len).extend(node)
        return [tuple(sorted(group)) for group in groups]
    counts = [1] * len(nodes)
    for _ in range(number - len(nodes)):  # the next process goes where a process would still get most
        place = max(range(len(nodes)), key=lambda i: len(nodes[i]) / (counts[i] + 1))
        counts[place] += 1
    return [part for node, count in zip(nodes, counts, strict=True) for part in _parts(node, count)]


def core_numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of a list of ranges: (0, 1, 2, 8) for "0-2,8". Any other text gives no numbers."""
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text):
        return ()
    ends = [part.partition("-") for part in text.split(",")]
    return tuple(number for first, _, last in ends for number in range(int(first), int(last or first) + 1))


def numa_cores(directory: Path = NODES) -> list[tuple[int, tuple[int, ...]]]:
    """Return the number of each NUMA node that the system lists, in order, and its cores."""
    numbers = sorted(int(path.name.removeprefix("node")) for path in directory.glob("node[0-9]*"))
    return [(number, core_numbers(_read(directory / f"node{number}" / "cpulist"))) for number in numbers]


def _nodes(cores: Collection[int], directory: Path) -> list[list[int]]:
    """Return the cores of each NUMA node that has any, with those of one physical core beside each other."""
    found = []
    left = set(cores)
    for _, numbers in numa_cores(directory):
        here = left.intersection(numbers)
        left -= here
        found.append(here)
    found.append(left)
    return [sorted(node, key=lambda core: (_first_sibling(core), core)) for node in found if node]


def _first_sibling(core: int) -> int:
    return min(core_numbers(_read(_CORES / f"cpu{core}" / "topology" / "thread_siblings_list")), default=core)


def _parts(cores: Sequence[int], number: int) -> list[tuple[int, ...]]:
    """Divide a sequence into parts whose lengths differ by at most 1."""
    ends = [len(cores) * i // number for i in range(number + 1)]
    return [tuple(sorted(cores[first:end])) for first, end in pairwise(ends)]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
