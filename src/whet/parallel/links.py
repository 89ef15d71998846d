"""Measure how processes reach each other: clocks, round trips, bandwidth, and the time of an all-reduce."""

import time
from collections.abc import Callable
from statistics import median

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, distributed

from whet.parallel.ranks import Ranks

_ROUND_TRIPS = 20
_BURST_BYTES = 4 << 20  # of one message, where bandwidth is measured
_BURSTS = 5
_MATMUL_S = 0.3  # long enough to get a whole turn on a core that is shared
_REPEATS = 15
ALL_REDUCE_BYTES = (4, 16 << 20)
"""The sizes of the all-reduces that are timed: one for latency, one for bandwidth."""

Clock = Callable[[], float]


class Link(BaseModel):
    """Describe how a process reaches the first one.

    Attributes:
        round_trip_s: The shortest time of a message and its answer.
        clock_offset_s: By how much this process's clock is ahead of the first one's.
        clock_error_s: How far the offset may be wrong: half a round trip (Mills, RFC 5905).
        bytes_per_s: The rate of messages of 4 MiB, there and back.
    """

    model_config = ConfigDict(frozen=True)

    round_trip_s: float
    clock_offset_s: float
    clock_error_s: float
    bytes_per_s: float


class AllReduce(BaseModel):
    """Describe the sum of a tensor over all processes.

    Attributes:
        backend: "gloo" or "nccl".
        num_bytes: The size of the tensor on each process.
        seconds: The median time.
        bytes_per_s: What each process sends and receives at the least, 2 (n - 1) / n of the tensor, a second.
    """

    model_config = ConfigDict(frozen=True)

    backend: str
    num_bytes: int
    seconds: float
    bytes_per_s: float


def link_to_first(ranks: Ranks, clock: Clock = time.time) -> Link | None:
    """Measure the link of each process to the first one, one after the other. All must call this.

    Returns:
        This process's link; None on the first one.
    """
    found = None
    for rank in range(1, ranks.world_size):
        distributed.barrier()
        if ranks.is_first:
            _answer(rank, clock)
        elif rank == ranks.rank:
            found = _ask(clock)
    return found


def _answer(rank: int, clock: Clock) -> None:
    """Answer the messages of a process, each with the time at which it came."""
    question, answer = torch.empty(1, dtype=torch.float64), torch.empty(1, dtype=torch.float64)
    for _ in range(_ROUND_TRIPS):
        distributed.recv(question, rank)
        distributed.send(answer.fill_(clock()), rank)
    burst = torch.empty(_BURST_BYTES, dtype=torch.uint8)
    for _ in range(_BURSTS):
        distributed.recv(burst, rank)
        distributed.send(burst, rank)


def _ask(clock: Clock) -> Link:
    question, answer = torch.zeros(1, dtype=torch.float64), torch.empty(1, dtype=torch.float64)
    trips: list[tuple[float, float]] = []
    for _ in range(_ROUND_TRIPS):
        by_clock, began = clock(), time.perf_counter()
        distributed.send(question, 0)
        distributed.recv(answer, 0)
        trip_s = time.perf_counter() - began
        trips.append((trip_s, by_clock + trip_s / 2 - float(answer)))
    burst = torch.zeros(_BURST_BYTES, dtype=torch.uint8)
    times = [_timed(lambda: (distributed.send(burst, 0), distributed.recv(burst, 0))) for _ in range(_BURSTS)]
    shortest_s, offset_s = min(trips)  # the offset of the shortest trip is the surest one
    return Link(
        round_trip_s=shortest_s,
        clock_offset_s=offset_s,
        clock_error_s=shortest_s / 2,
        bytes_per_s=2 * _BURST_BYTES / min(times),
    )


def all_reduces(ranks: Ranks, backend: str, device: torch.device) -> list[AllReduce]:
    """Time all-reduces of all processes. All must call this."""
    found = []
    for num_bytes in ALL_REDUCE_BYTES:
        x = torch.zeros(num_bytes // 4, device=device)
        times = [_timed(lambda x=x: _summed(x)) for _ in range(_REPEATS)][3:]  # type: ignore[misc]
        [seconds] = ranks.of_first(f"all-reduce, {backend}", [median(times)])
        sent = 2 * (ranks.world_size - 1) / ranks.world_size * num_bytes
        found.append(AllReduce(backend=backend, num_bytes=num_bytes, seconds=seconds, bytes_per_s=sent / seconds))
    return found


def _summed(x: Tensor) -> None:
    distributed.all_reduce(x)
    if x.is_cuda:
        torch.cuda.synchronize(x.device)


def matmul_flops(size: int = 512) -> float:
    """Return the float32 operations a second of this process's matrix products, in the best of some."""
    x = torch.ones(size, size)
    best_s, began = float("inf"), time.perf_counter()
    while time.perf_counter() - began < _MATMUL_S:
        best_s = min(best_s, _timed(lambda: x @ x))
    return 2 * size**3 / best_s


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
