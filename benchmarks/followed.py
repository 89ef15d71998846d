"""Count the processor time of a measurement whose processes end without anybody who waits for them.

The kernel adds an ended process's time to its parent's account only where the parent waits for it. Ray's nodes ignore
the ends of their workers, and whoever is killed waits for nobody: Meter, which reads the accounts before a block and
after it, takes that time for other programs'.

Source: proc(5) for /proc/PID/stat; wait(2) for SIGCHLD that is ignored.
"""

import contextlib
import os
import threading
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Self

from whet.measure.load import Reading, meter

_LOOK_S = 1.0  # what a process uses between the last look and its end is lost where nobody waits for it
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Account(NamedTuple):
    """Hold what the kernel says of a process: its parent, its start, its time, and that of those it has waited for."""

    parent: int
    began: str
    own_s: float
    waited_for_s: float


class Ledger:
    """Sum up the time of a process and of all that it and they start, whoever their parent is later.

    Attributes:
        total_s: What they have used, as of the last look.
    """

    def __init__(self, root: int) -> None:
        self.total_s = 0.0
        self._root = root
        self._known: dict[int, Account] = {}
        self._owed: defaultdict[int, float] = defaultdict(float)  # of ended children, by the parent that may wait yet
        self.look()

    def look(self) -> None:
        """Find new processes, and add what all have used since the last look."""
        now = accounts()
        alive = {pid for pid, one in self._known.items() if pid in now and now[pid].began == one.began}
        for pid in self._known.keys() - alive:
            ended = self._known.pop(pid)
            self._owed[ended.parent] += ended.own_s + ended.waited_for_s + self._owed.pop(pid, 0.0)
        for pid in _with_descendants({self._root, *alive}, now):
            self._add(pid, now[pid])

    def _add(self, pid: int, one: Account) -> None:
        before = self._known.get(pid, Account(one.parent, one.began, 0.0, 0.0))
        waited_for_s = one.waited_for_s - before.waited_for_s
        counted_s = min(self._owed[pid], waited_for_s)  # while they lived
        self._owed[pid] -= counted_s
        self.total_s += one.own_s - before.own_s + waited_for_s - counted_s
        self._known[pid] = one


class Followed:
    """Read the kernel's counters as Meter does, and look every second at this process's descendants meanwhile."""

    def __init__(self) -> None:
        self._meter = meter()
        self._ledger = Ledger(os.getpid())
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="followed", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def __call__(self) -> Reading:
        with self._lock:
            self._ledger.look()
            return replace(self._meter(), own_s=self._ledger.total_s)

    def _follow(self) -> None:
        while not self._is_over.wait(_LOOK_S):
            with self._lock:
                self._ledger.look()


def accounts() -> dict[int, Account]:
    """Return the accounts of all processes by their ids. Those that have ended stay until somebody has waited."""
    found = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - names alone, and fast
        if name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                words = Path(f"/proc/{name}/stat").read_text(errors="replace").rpartition(")")[2].split()
                user, system, waited_user, waited_system = (int(word) * _TICK_S for word in words[11:15])
                found[int(name)] = Account(int(words[1]), words[19], user + system, waited_user + waited_system)
    return found


def _with_descendants(pids: set[int], among: dict[int, Account]) -> set[int]:
    children = defaultdict(list)
    for pid, one in among.items():
        children[one.parent].append(pid)
    found, left = set[int](), list(pids)
    while left:
        pid = left.pop()
        if pid not in found:
            found.add(pid)
            left += children[pid]
    return found
