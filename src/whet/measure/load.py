"""Read from the kernel what other processes did during a timed block: the load beside a measurement.

A block is judged by the effect of the load. A measurement becomes slower when a thread is ready to run and finds no
free core. Linux counts that time for every thread ("run delay", /proc/PID/task/TID/schedstat). A model whose own thread
pools compete for cores shows run delay as well, so it counts only where other processes used the cores.

Sources: Linux kernel documentation, "Scheduler Statistics", "PSI - Pressure Stall Information" and "Control Group v2"
(cpu.stat); proc(5) for /proc/stat and /proc/PID/stat.
"""

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

import psutil

from whet.measure.cgroup import cpu_stat_files, throttled_s
from whet.measure.cores import allowed_cores
from whet.ui.figures import percent

ROOT = "WHET_MEASUREMENT"  # environment variable: the id of the process whose descendants are the measurement

PRETENDED = "WHET_PRETENDED_LOAD"  # environment variable: cores' worth of other processes that tests pretend to see

MAX_WAITED = 0.05  # share of a block that its threads may wait for a core while other processes use some
MAX_WAITED_LONG = 0.25  # the same of a block of seconds, of which typical or best calls count, not all
MAX_FOREIGN = 0.25  # share of the cores that other processes may use: beyond, caches and clocks are theirs as well
MAX_STOPPED = 0.05  # share of a block that the hypervisor, a quota or heat may take
SOME_FOREIGN = 0.05  # cores' worth of other processes; below it, threads wait for others of their own measurement
_TICK_S = 1 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.01  # the unit in which others' time is counted

_PROC = Path("/proc")
_HEAT = "/sys/devices/system/cpu/cpu{}/thermal_throttle/core_throttle_total_time_ms"


@dataclass(frozen=True)
class Load:
    """Hold what happened on the machine during `seconds` of wall time. Times are in seconds; unknown ones are 0.

    Attributes:
        cores: Cores that this process may use.
        waited_s: Time that threads of this process were ready to run and had no core, summed over the threads.
        foreign_s: CPU time of processes outside the measurement, on the cores that this process may use.
        stolen_s: Time that the hypervisor gave to other virtual machines, summed over the cores.
        throttled_s: Time that a container's CPU quota kept processes from running.
        heat_s: Time that a core was throttled for heat.
        pressure_s: Time that some task on the machine or in the container waited for a core (PSI). It includes the
            measurement's own tasks, so it is evidence and decides nothing.
    """

    seconds: float = 0.0
    cores: int = 1
    waited_s: float = 0.0
    foreign_s: float = 0.0
    stolen_s: float = 0.0
    throttled_s: float = 0.0
    heat_s: float = 0.0
    pressure_s: float = 0.0

    @property
    def foreign_cores(self) -> float:
        """Return how many cores other processes used on average."""
        return self.foreign_s / self.seconds if self.seconds else 0.0

    @property
    def cause(self) -> str:
        """Return what disturbed the block, as a clause for people; "" for a quiet block."""
        return self.cause_beyond(MAX_WAITED)

    def cause_beyond(self, most_waited: float) -> str:
        """Return what disturbed the block, where its threads may wait for a core for this share of the time."""
        if not self.seconds:
            return ""
        slack_s = 2 * _TICK_S  # what counting in ticks can show by itself
        if self.foreign_s > MAX_FOREIGN * self.cores * self.seconds + slack_s or (
            self.foreign_cores >= SOME_FOREIGN and self.waited_s > most_waited * self.seconds
        ):
            text = f"other processes used {self.foreign_cores:.1f} of {_cores(self.cores)}"
            waited = min(1.0, self.waited_s / self.seconds)
            return text + (
                f" and made it wait for {percent(waited, decimals=0)} of the time" if waited > MAX_WAITED else ""
            )
        for lost_s, text in (
            (self.stolen_s / self.cores, "the hypervisor gave its cores to others for {} of the time (steal)"),
            (self.throttled_s, "the container's CPU quota stopped it for {} of the time"),
            (self.heat_s, "the processor was throttled for heat for {} of the time"),
        ):
            if lost_s > MAX_STOPPED * self.seconds + slack_s:
                return text.format(percent(min(1.0, lost_s / self.seconds), decimals=0))
        return ""

    @property
    def is_quiet(self) -> bool:
        return not self.cause

    def __add__(self, other: "Load") -> "Load":
        return total((self, other))


NO_LOAD = Load()
_SUMMED = tuple(field.name for field in fields(Load) if field.name != "cores")
_COUNTED = tuple(name for name in _SUMMED if name not in ("seconds", "foreign_s"))  # what the kernel itself counts


def total(loads: Iterable[Load]) -> Load:
    """Return several blocks taken together. It is asked for after every block, so it makes no record in between."""
    blocks = list(loads)
    sums = {name: sum(getattr(block, name) for block in blocks) for name in _SUMMED}
    return Load(cores=max((block.cores for block in blocks), default=1), **sums)


def quiet_blocks(loads: Sequence[Load]) -> list[bool]:
    """Tell for each of several short blocks of one measurement whether it was quiet.

    The kernel counts other processes' time in ticks of some milliseconds. Whether there was anybody else at all is
    therefore judged over all blocks together; where there was not, threads waited for others of their own measurement.
    """
    alone = total(loads).foreign_cores < SOME_FOREIGN
    return [load.is_quiet or (alone and load.cause.startswith("other processes")) for load in loads]


def cause_of(loads: Sequence[Load]) -> str:
    """Return what disturbed a measurement: over all its blocks if that tells, else in the first disturbed one."""
    return total(loads).cause or next((load.cause for load in loads if load.cause), "")


@dataclass(frozen=True)
class Reading:
    """Hold the kernel's counters at one moment, in seconds. The difference of two readings is a Load."""

    at_s: float
    cores: int = 1
    own_s: float = 0.0  # CPU time of the measurement's processes
    busy_s: float = 0.0  # CPU time of everything on the cores that this process may use
    waited_s: float = 0.0
    stolen_s: float = 0.0
    throttled_s: float = 0.0
    heat_s: float = 0.0
    pressure_s: float = 0.0

    def until(self, later: "Reading") -> Load:
        return Load(
            seconds=later.at_s - self.at_s,
            cores=later.cores,
            foreign_s=max(0.0, (later.busy_s - self.busy_s) - (later.own_s - self.own_s)),
            **{name: max(0.0, getattr(later, name) - getattr(self, name)) for name in _COUNTED},
        )


Read = Callable[[], Reading]


class Meter:
    """Reads the kernel's counters. Call it before and after a block; a call takes some 40 microseconds.

    Args:
        also: Ids of processes that belong to the measurement with all their descendants, beside this process and the
            process that started the measurement: a server on the same machine that is measured from here.
    """

    def __init__(self, also: Sequence[int] = ()) -> None:
        self._roots = (*roots(), *also)
        self._allowed = allowed_cores()
        self._own: dict[int, _Counter] = {}
        self._children: dict[int, _Counter] = {}
        self._threads: dict[str, _Counter] = {}
        self._gone_s = 0.0  # what threads that have ended had waited
        self._stat = _Counter(_PROC / "stat")
        self._pressure = _Counter(_PROC / "pressure" / "cpu")
        self._quotas = [_Counter(path) for path in cpu_stat_files()]
        self._heat = [_Counter(Path(_HEAT.format(core))) for core in self._allowed]
        self.look_around()

    def look_around(self) -> None:
        """List the measurement's processes anew. It takes milliseconds on a machine with many processes."""
        pids = {pid for root in self._roots for pid in tree_of(root)} - {os.getpid()}
        self._own = {pid: self._own.get(pid) or _Counter(_PROC / str(pid) / "stat") for pid in pids}
        self._children = {pid: self._children.get(pid) or _children_of(pid) for pid in (os.getpid(), *pids)}

    def _notice_new_processes(self) -> None:
        """Take in what the measurement's processes have started since the last reading, such as a loader's workers."""
        parents = list(self._children.values())
        while parents:
            listed = {int(pid) for parent in parents for pid in parent.now().split()}
            pids = (
                listed - self._own.keys() - {os.getpid()}
            )  # the parent's list holds this process, which is counted apart
            for pid in pids:
                self._own[pid] = _Counter(_PROC / str(pid) / "stat")
                self._children[pid] = _children_of(pid)
            parents = [self._children[pid] for pid in pids]

    def __call__(self) -> Reading:
        if not self._stat.exists:  # not Linux: what psutil knows
            times = psutil.cpu_times()
            busy_s = sum(times) - times.idle - getattr(times, "iowait", 0.0)
            return Reading(time.perf_counter(), len(self._allowed), time.process_time(), busy_s)
        busy_s, stolen_s = self._cores()
        return Reading(
            at_s=time.perf_counter(),
            cores=len(self._allowed),
            own_s=self._own_s(),
            busy_s=busy_s,
            waited_s=self._waited(),
            stolen_s=stolen_s,
            throttled_s=max((throttled_s(counter.text()) for counter in self._quotas), default=0.0),
            heat_s=sum(float(counter.text() or 0) for counter in self._heat) / 1e3 / max(1, len(self._heat)),
            pressure_s=_pressure_s(self._pressure.text()),
        )

    def _own_s(self) -> float:
        """Return the CPU time of the measurement; this process's share of it comes from a clock finer than ticks.

        The time of a process that has ended is in its parent's account.
        """
        self._notice_new_processes()
        stats = {pid: counter.now() for pid, counter in self._own.items()}
        for pid in [pid for pid, stat in stats.items() if not stat]:
            del self._own[pid], self._children[pid]
        ended = os.times()  # after the others: what ends in between is then in its parent's account
        here_s = time.process_time() + ended.children_user + ended.children_system
        return here_s + sum(map(_process_s, stats.values()))

    def _cores(self) -> tuple[float, float]:
        """Return the seconds that the allowed cores were busy, and those that were stolen from them."""
        busy = stolen = 0
        for line in self._stat.text().splitlines()[1:]:
            name, _, rest = line.partition(" ")
            if not name.startswith("cpu"):
                break
            if int(name[3:]) in self._allowed:
                user, nice, system, _, _, irq, softirq, steal = (int(word) for word in rest.split()[:8])
                busy += user + nice + system + irq + softirq
                stolen += steal
        return busy * _TICK_S, stolen * _TICK_S

    def _waited(self) -> float:
        """Return the seconds of run delay of this process's threads, ended ones since the first call included."""
        with contextlib.suppress(OSError):
            tids = set(os.listdir("/proc/self/task"))  # noqa: PTH208 - names alone, and fast
            for tid in tids - self._threads.keys():
                self._threads[tid] = _Counter(_PROC / "self" / "task" / tid / "schedstat")
            for tid in self._threads.keys() - tids:
                self._gone_s += _delay_s(self._threads.pop(tid).last)
        return self._gone_s + sum(_delay_s(counter.text()) for counter in self._threads.values())


def meter(also: Sequence[int] = ()) -> Read:
    """Return what reads the kernel's counters, or the load that a test pretends in WHET_PRETENDED_LOAD.

    Tests run beside each other on a machine that is always busy, and check what happens on a quiet one.
    """
    pretended = os.environ.get(PRETENDED)
    return Meter(also) if pretended is None else _pretending(float(pretended))


def _pretending(foreign_cores: float) -> Read:
    def read() -> Reading:
        now = time.perf_counter()
        waited_s = 0.5 * now if foreign_cores >= SOME_FOREIGN else 0.0
        return Reading(now, len(allowed_cores()), busy_s=foreign_cores * now, waited_s=waited_s)

    return read


class _Counter:
    """Keep one of the kernel's files open, since opening it takes longer than reading it."""

    def __init__(self, path: Path) -> None:
        self.last = ""
        try:
            self._file: int | None = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = None

    @property
    def exists(self) -> bool:
        return self._file is not None

    def text(self) -> str:
        """Return what the file holds now; what it held last, where its process has ended; "" where there is none."""
        self.last = self.now() or self.last
        return self.last

    def now(self) -> str:
        """Return what the file holds now; "" where its process has ended."""
        if self._file is None:
            return ""
        try:
            return os.pread(self._file, 65536, 0).decode("ascii", errors="replace")
        except OSError:
            return ""

    def __del__(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.close(self._file)


class Observed:
    """A context manager that tells in `load` what the machine did beside a block of code, once the block has ended."""

    load: Load = NO_LOAD

    def __init__(self, read: Read | None = None) -> None:
        self._read = read or meter()

    def __enter__(self) -> Self:
        self._before = self._read()
        return self

    def __exit__(self, *_: object) -> None:
        if isinstance(self._read, Meter):
            self._read.look_around()  # processes that were started meanwhile belong to the measurement
        self.load = self._before.until(self._read())


def environment() -> dict[str, str]:
    """Return the environment variable by which a child process knows which measurement it belongs to."""
    return {ROOT: os.environ.get(ROOT) or str(os.getpid())}


def roots() -> tuple[int, ...]:
    """Return the processes that are the measurement with all their descendants: this one, and the one that began it."""
    return os.getpid(), int(os.environ.get(ROOT) or os.getpid())


def thread_delay_s() -> float:
    """Return how long this thread has been ready to run without a core, in seconds; 0 where the system does not say."""
    try:
        return _delay_s(Path("/proc/thread-self/schedstat").read_text(encoding="ascii"))
    except OSError:
        return 0.0


def tree_of(pid: int) -> list[int]:
    """Return a process and all its descendants by their ids; an empty list where it has ended."""
    try:
        process = psutil.Process(pid)
        return [pid, *(child.pid for child in process.children(recursive=True))]
    except psutil.Error:
        return []


def _children_of(pid: int) -> _Counter:
    """Return the file that lists the children that a process's main thread has started."""
    return _Counter(_PROC / str(pid) / "task" / str(pid) / "children")


def _process_s(stat: str) -> float:
    """Return the CPU time of a process and of its children that have ended, from /proc/PID/stat."""
    words = stat.rpartition(")")[2].split()  # the name before it may hold spaces
    return sum(int(word) for word in words[11:15]) * _TICK_S


def _delay_s(schedstat: str) -> float:
    words = schedstat.split()
    return int(words[1]) / 1e9 if len(words) > 1 else 0.0


def _pressure_s(text: str) -> float:
    found = text.partition("total=")[2].split()
    return int(found[0]) / 1e6 if found else 0.0


def _cores(count: float) -> str:
    return "1 core" if math.isclose(count, 1) else f"{count:g} cores"
