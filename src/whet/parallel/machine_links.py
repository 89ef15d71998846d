"""Measure how fast processes on this machine reach one another. The figures are kept in the cache of the limits."""

import tempfile
from pathlib import Path
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict

from whet.errors import MachineError
from whet.measure.group import run_together
from whet.measure.isolate import FailureKind, Job
from whet.measure.load import MAX_WAITED_LONG, Observed
from whet.measure.machine.cache import cache_dir
from whet.measure.machine.description import Machine
from whet.measure.machine.record_file import Record, keep_record, read_record
from whet.measure.quiet import glance_at_machine
from whet.parallel.joining import joined, own_device
from whet.parallel.links import OPERATIONS, Collective, backend_of, time_collective

SIZES = tuple(4 * 16**power for power in range(7))
"""The bytes of the tensors that are timed: 4 B to 64 MiB."""

NUM_PROCESSES = (2, 4)

_WHAT = "the links between processes"
_QUIET_CHECK_S = 0.25  # of watching whether the machine is quiet again
_LIMIT_S = 300.0
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": "0"}


class MachineLinks(BaseModel):
    """Hold the times of collectives between processes of this machine, each on a share of its cores or on a GPU.

    Attributes:
        collectives: By operation and size, the smallest first.
        busy: What disturbed the measurement; "" for a quiet machine. Disturbed times may be too long. They are
            measured again on a quiet machine.
    """

    model_config = ConfigDict(frozen=True)

    num_processes: int
    backend: str
    collectives: tuple[Collective, ...]
    busy: str = ""

    @property
    def latency_s(self) -> float:
        """Return the time of the smallest message from one process to another."""
        return min(one.seconds for one in self.collectives if one.operation == "send")

    @property
    def bytes_per_s(self) -> float:
        """Return what a process sends in the best all-reduce, while it receives as much."""
        return max(one.bytes_per_s for one in self.collectives if one.operation == "all-reduce")

    @property
    def gather_bytes_per_s(self) -> float:
        """Return what a process sends in the best all-gather or reduce-scatter, whichever is slower."""
        return min(
            max(one.bytes_per_s for one in self.collectives if one.operation == operation)
            for operation in ("all-gather", "reduce-scatter")
        )

    def best_of(self, other: "MachineLinks") -> "MachineLinks":
        """Combine two measurements: the shorter time of each operation and size, since load can only lengthen it."""
        earlier = {(one.operation, one.num_bytes): one for one in other.collectives}
        pairs = [(one, earlier.get((one.operation, one.num_bytes), one)) for one in self.collectives]
        return MachineLinks(
            num_processes=self.num_processes,
            backend=self.backend,
            collectives=tuple(min(pair, key=lambda one: one.seconds) for pair in pairs),
            busy=self.busy if other.busy else "",
        )


class _Record(Record):
    """Define the cached file."""

    format: Literal[1] = 1
    links: MachineLinks


class Asked(BaseModel):
    """Say what the processes time."""

    device: str
    sizes: tuple[int, ...]


class Timed(BaseModel):
    """Hold what the processes found, and what disturbed them."""

    collectives: tuple[Collective, ...]
    busy: str


def all_links(machine: Machine, *, refresh: bool = False) -> list[MachineLinks]:
    """Return the links between 2 and between 4 processes, then those between GPUs where there are several."""
    on_gpus = [number for number in NUM_PROCESSES if number <= len(machine.gpus)]
    return [
        *(load_links(machine, number, refresh=refresh) for number in NUM_PROCESSES),
        *(load_links(machine, number, device="cuda", refresh=refresh) for number in on_gpus),
    ]


def load_links(machine: Machine, num_processes: int, *, device: str = "cpu", refresh: bool = False) -> MachineLinks:
    """Return the links between so many processes. They are measured once, then read from the cache.

    They are measured again if the file is damaged, or if other processes disturbed the measurement and the machine is
    quiet now.

    Args:
        device: "cpu" for gloo, "cuda" for nccl with a GPU for each process.
        refresh: Whether to measure again. The best of all measurements counts.

    Raises:
        MachineError: The processes cannot reach one another.
    """
    path = cache_dir() / f"links-{machine.fingerprint}-{device}-{num_processes}.json"
    record = read_record(path, _Record, machine.fingerprint, _WHAT)
    known = None if record is None else record.links
    if known is not None and not refresh and not (known.busy and glance_at_machine(_QUIET_CHECK_S)[0].is_quiet):
        return known
    links = measure_links(num_processes, device=device)
    if known is not None:
        links = links.best_of(known)
    keep_record(path, _Record(fingerprint=machine.fingerprint, links=links), _WHAT)
    return links


def measure_links(num_processes: int, *, device: str = "cpu", sizes: tuple[int, ...] = SIZES) -> MachineLinks:
    """Start so many processes, and time each operation with each size. It takes some twenty seconds."""
    with tempfile.TemporaryDirectory(prefix="whet-links-") as place:
        asked = Asked(device=device, sizes=sizes)
        jobs = [Job(time_links, asked, Path(place) / str(rank), _ONE_THREAD) for rank in range(num_processes)]
        outcomes = run_together(jobs, time_limit_s=_LIMIT_S)
    failures = [outcome.failure for outcome in outcomes if outcome.failure is not None]
    failures.sort(key=lambda failure: failure.kind is FailureKind.PEER)
    timed = outcomes[0].answer(Timed)
    if failures or timed is None:
        why = failures[0].message if failures else "the first process gave no answer"
        raise MachineError(
            f"the links between {num_processes} processes cannot be measured: {why}; `whet doctor` says what works here"
        )
    return MachineLinks(
        num_processes=num_processes,
        backend=backend_of(device),
        collectives=timed.collectives,
        busy=timed.busy,
    )


def time_links(asked: Asked) -> Timed:
    """Time everything as one of the processes; all find the same."""
    with joined(asked.device, _LIMIT_S) as ranks:
        device = own_device(asked.device, ranks)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        with Observed() as seen:
            found = [
                time_collective(ranks, operation, size, device) for operation in OPERATIONS for size in asked.sizes
            ]
        causes = ranks.gather("what disturbed them", seen.load.cause_beyond(MAX_WAITED_LONG))
    return Timed(collectives=tuple(found), busy=next((cause for cause in causes if cause), ""))
