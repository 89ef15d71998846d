"""Compare the processes that torchrun started: versions, processors, clocks, links, and which are slow."""

import os
import platform
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median

import psutil
import torch
from pydantic import BaseModel, ConfigDict
from torch import distributed

from whet import __version__
from whet.measure.backends import Backend, backends
from whet.measure.machine import describe
from whet.parallel.links import Clock, Collective, Link, all_reduces, link_to_first, matmul_flops
from whet.parallel.ranks import Ranks
from whet.ui.figures import counted, digits, num_bytes

_SLOW_COMPUTE, _SLOW_LINK = 0.8, 0.5  # of the median, below which a process is called slow
_LATE_TRIPS = 3.0  # times the median, above which a round trip is called slow
_CLOCK_S = 0.1  # by which clocks may differ
_INTERFACE = "GLOO_SOCKET_IFNAME"


class RankFacts(BaseModel):
    """Describe one process.

    Attributes:
        interface: The network interface that gloo uses, with its address; "" for not known.
        is_loopback: Whether that reaches this machine alone.
        flops: The float32 operations a second of its matrix products, while all compute.
        link: How it reaches the first process; None of that one.
        gpu: The GPU that it uses; "" for none.
    """

    model_config = ConfigDict(frozen=True)

    rank: int
    host: str
    whet: str
    torch: str
    python: str
    processor: str
    cores: int
    threads: int
    interface: str
    is_loopback: bool
    flops: float
    link: Link | None = None
    gpu: str = ""
    backends: tuple[Backend, ...] = ()


class RankAdvice(BaseModel):
    """Describe one thing that differs between processes, or is slow, and what to do about it."""

    model_config = ConfigDict(frozen=True)

    problem: str
    remedy: str


class RankCheckup(BaseModel):
    """Hold what the processes found together."""

    model_config = ConfigDict(frozen=True)

    ranks: tuple[RankFacts, ...]
    all_reduces: tuple[Collective, ...]
    advice: tuple[RankAdvice, ...] = ()

    @property
    def sentence(self) -> str:
        """Return the outcome in one sentence."""
        machines = counted(len({one.host for one in self.ranks}), "machine")
        met = f"{counted(len(self.ranks), 'rank')} on {machines} reach one another"
        if not self.advice:
            return f"{met}, and none is slow."
        return f"{met}; {counted(len(self.advice), 'thing')} could be better, as listed at the end."

    def text(self) -> str:
        """Return what was found as a page of text."""
        lines = [f"whet doctor: {self.sentence}", "", "ranks"]
        lines += _table([_HEAD, *(_row(one) for one in self.ranks)])
        lines += ["", "communication"]
        lines += _table([_all_reduce_row(one) for one in self.all_reduces])
        lines += ["", "backends", *(f"  {one.name}: {one.told}" for one in self.ranks[0].backends)]
        lines += ["", "what differs or is slow, and what to do"]
        for entry in self.advice:
            lines += [f"  {entry.problem}", f"    -> {entry.remedy}"]
        return "\n".join(lines if self.advice else [*lines, "  nothing"])


_HEAD = (
    *("rank", "host", "interface", "processor", "cores", "threads", "GFLOP/s"),
    *("round trip", "MB/s to rank 0", "clock"),
)


def _row(one: RankFacts) -> tuple[str, ...]:
    link = one.link
    far = (
        ("–", "–", "–")
        if link is None
        else (
            f"{digits(link.round_trip_s * 1e3)} ms",
            digits(link.bytes_per_s / 1e6),
            f"{link.clock_offset_s * 1e3:+.2f} ± {link.clock_error_s * 1e3:.2f} ms",
        )
    )
    own = (str(one.rank), one.host, one.interface or "not known", one.gpu or one.processor)
    return (*own, str(one.cores), str(one.threads), digits(one.flops / 1e9), *far)


def _all_reduce_row(one: Collective) -> tuple[str, ...]:
    rate = f"{num_bytes(one.bytes_per_s)}/s for each process" if one.num_bytes > 4 else ""
    return f"all-reduce, {one.backend}", num_bytes(one.num_bytes), f"{digits(one.seconds * 1e3)} ms", rate


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def checkup(ranks: Ranks, device: torch.device, clock: Clock = time.time) -> RankCheckup:
    """Compare all processes, in some seconds. All must call this, and nothing else may run in them.

    Args:
        device: The device of this process.
        clock: Returns the time of day in seconds.
    """
    distributed.barrier()  # all compute at the same time, as they do in a training
    flops = matmul_flops()
    distributed.barrier()
    facts = _facts(ranks, device).model_copy(update={"flops": flops, "link": link_to_first(ranks, clock)})
    found = tuple(map(RankFacts.model_validate, ranks.gather("the facts", facts.model_dump(mode="json"))))
    timed = all_reduces(ranks, torch.device("cpu"))
    if device.type == "cuda":
        timed += all_reduces(ranks, device)
    return RankCheckup(ranks=found, all_reduces=tuple(timed), advice=tuple(advice(found)))


def _facts(ranks: Ranks, device: torch.device) -> RankFacts:
    machine = describe()
    interface, address = _interface()
    return RankFacts(
        rank=ranks.rank,
        host=socket.gethostname(),
        whet=__version__,
        torch=torch.__version__,
        python=platform.python_version(),
        processor=machine.chip,
        cores=machine.cores,
        threads=torch.get_num_threads(),
        interface=" ".join(filter(None, (interface, address))),
        is_loopback=address.startswith("127.") or address == "::1",
        flops=0.0,
        gpu=torch.cuda.get_device_name(device) if device.type == "cuda" else "",
        backends=backends(),
    )


def _interface() -> tuple[str, str]:
    """Return the name and the address of the interface that gloo uses: the one named, or that of the host's name."""
    addresses = psutil.net_if_addrs()
    if named := os.environ.get(_INTERFACE, ""):
        first = named.partition(",")[0]
        return first, next((one.address for one in addresses.get(first, ()) if one.family == socket.AF_INET), "")
    try:
        found = socket.gethostbyname(socket.gethostname())
    except OSError:
        return "", ""
    return next((name for name, all_of in addresses.items() for one in all_of if one.address == found), ""), found


def advice(ranks: Sequence[RankFacts]) -> Iterator[RankAdvice]:
    """Yield what differs between processes, and which are slow."""
    for what in ("whet", "torch", "python", "processor", "cores", "threads", "gpu"):
        yield from _on_difference(what, {one.rank: str(getattr(one, what)) for one in ranks})
    for one in ranks:
        if one.is_loopback and len({other.host for other in ranks}) > 1:
            problem = f"rank {one.rank}: {one.host} is {one.interface}, which other machines cannot reach"
            yield RankAdvice(problem=problem, remedy=f"set {_INTERFACE} to the interface that they share")
    yield from _on_speed(ranks)
    for one in ranks:
        if one.link is not None and abs(one.link.clock_offset_s) - one.link.clock_error_s > _CLOCK_S:
            way = "ahead of" if one.link.clock_offset_s > 0 else "behind"
            problem = f"rank {one.rank}: the clock of {one.host} is {abs(one.link.clock_offset_s):.2f} s {way} rank 0's"
            remedy = "set clocks by NTP (chrony): logs and signs of life of different machines are compared by them"
            yield RankAdvice(problem=problem, remedy=remedy)


def _on_difference(what: str, by_rank: dict[int, str]) -> Iterator[RankAdvice]:
    usual, _ = Counter(by_rank.values()).most_common(1)[0]
    others = {rank: value for rank, value in by_rank.items() if value != usual}
    if not others:
        return
    told = ", ".join(f"rank {rank} has {value or 'none'}" for rank, value in others.items())
    is_version = what in ("whet", "torch", "python")
    remedy = (
        "install the same versions on all machines"
        if is_version
        else "a step takes as long as on the slowest process: use equal machines and the same OMP_NUM_THREADS"
    )
    yield RankAdvice(problem=f"{what}: {told}, and the others {usual or 'none'}", remedy=remedy)


def _on_speed(ranks: Sequence[RankFacts]) -> Iterator[RankAdvice]:
    usual = median(one.flops for one in ranks)
    for one in ranks:
        if one.flops < _SLOW_COMPUTE * usual:
            told = f"computes {digits(one.flops / 1e9)} GFLOP/s, and the median is {digits(usual / 1e9)}"
            remedy = f"see what else runs on {one.host}, its cores and its clock; all others wait for it in each step"
            yield RankAdvice(problem=f"rank {one.rank} is slow: it {told}", remedy=remedy)
    linked = [(one, one.link) for one in ranks if one.link is not None]
    if not linked:
        return
    rate = median(link.bytes_per_s for _, link in linked)
    trip_s = median(link.round_trip_s for _, link in linked)
    for one, link in linked:
        faults = []
        if link.bytes_per_s < _SLOW_LINK * rate:
            faults.append(f"{digits(link.bytes_per_s / 1e6)} MB/s, where the median is {digits(rate / 1e6)}")
        if link.round_trip_s > _LATE_TRIPS * trip_s:
            faults.append(
                f"round trips of {digits(link.round_trip_s * 1e3)} ms, where the median is {trip_s * 1e3:.3g}"
            )
        if faults:
            remedy = f"see the network of {one.host}, and set {_INTERFACE} if it has a faster interface"
            yield RankAdvice(problem=f"rank {one.rank} has a slow link: {' and '.join(faults)}", remedy=remedy)
