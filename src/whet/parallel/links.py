"""Measure how processes reach each other: clocks, round trips, bandwidth, and the time of collectives."""

import time
from collections.abc import Callable
from statistics import median
from typing import Literal, get_args

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, distributed

from whet.parallel.ranks import Ranks

_ROUND_TRIPS = 20
_BURST_BYTES = 4 << 20  # of one message, where bandwidth is measured
_BURSTS = 5
_MATMUL_S = 0.3  # long enough to get a whole turn on a core that is shared
_REPEATS = 3, 12  # timed calls of a collective, at least and at most
_TIMED_S = 0.3  # of them, where the least number does not take longer
ALL_REDUCE_BYTES = (4, 16 << 20)
"""The sizes of the all-reduces that are timed: one for latency, one for bandwidth."""

Clock = Callable[[], float]
Operation = Literal["send", "all-reduce", "all-gather", "reduce-scatter", "broadcast"]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)


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


class Collective(BaseModel):
    """Describe what all processes do together with a tensor.

    Attributes:
        operation: "send" is a message from each even process to the next one; the others are those of PyTorch.
        backend: "gloo" or "nccl".
        num_bytes: The size of the tensor. For all-gather it is the result, for reduce-scatter what each process gives.
        seconds: The median time, on the process where that is longest.
        bytes_per_s: What each process sends at the least, a second: of n processes 2 (n - 1) / n of the tensor for
            all-reduce, (n - 1) / n for all-gather and reduce-scatter, else the tensor.
    """

    model_config = ConfigDict(frozen=True)

    operation: Operation
    backend: str
    num_bytes: int
    seconds: float = Field(gt=0, allow_inf_nan=False)
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


def all_reduces(ranks: Ranks, device: torch.device) -> list[Collective]:
    """Time all-reduces of all processes, a small and a large one. All must call this."""
    return [time_collective(ranks, "all-reduce", num_bytes, device) for num_bytes in ALL_REDUCE_BYTES]


def backend_of(device_type: str) -> str:
    """Return what processes exchange tensors on such a device by; see joined."""
    return "nccl" if device_type == "cuda" else "gloo"


def time_collective(ranks: Ranks, operation: Operation, num_bytes: int, device: torch.device) -> Collective:
    """Time what two or more processes do together. All must call this.

    Args:
        num_bytes: Of float32 numbers; rounded up where each process has an equal part of them.
        device: Of the tensor.
    """
    divides = operation in ("all-gather", "reduce-scatter")
    part = ranks.world_size if divides else 1
    whole = torch.zeros(-(-num_bytes // (4 * part)) * part, device=device)
    call = _call(operation, ranks, whole)
    call()  # connects
    backend = backend_of(device.type)
    name = f"{operation}, {backend}"
    [count] = ranks.of_first(name, [round(_TIMED_S / max(1e-6, _timed(call)))])
    times = [_timed(call) for _ in range(max(_REPEATS[0], min(count, _REPEATS[1])))]
    seconds = max(ranks.gather(name, median(times))) / (2 if operation == "send" else 1)
    others = (ranks.world_size - 1) / ranks.world_size
    sent = {"all-reduce": 2 * others, "all-gather": others, "reduce-scatter": others}.get(operation, 1.0)
    size = 4 * whole.numel()
    return Collective(
        operation=operation, backend=backend, num_bytes=size, seconds=seconds, bytes_per_s=sent * size / seconds
    )


def _call(operation: Operation, ranks: Ranks, whole: Tensor) -> Callable[[], None]:
    """Return what to time on this process."""
    own = whole[: whole.numel() // ranks.world_size].clone()
    calls: dict[Operation, Callable[[], object]] = {
        "send": lambda: _there_and_back(ranks, whole),
        "all-reduce": lambda: distributed.all_reduce(whole),
        "all-gather": lambda: distributed.all_gather_into_tensor(whole, own),
        "reduce-scatter": lambda: distributed.reduce_scatter_tensor(own, whole),
        "broadcast": lambda: distributed.broadcast(whole, 0),
    }
    run = calls[operation]

    def call() -> None:
        run()
        if whole.is_cuda:
            torch.cuda.synchronize(whole.device)

    return call


def _there_and_back(ranks: Ranks, x: Tensor) -> None:
    """Send a tensor to the other process of a pair, and get it back; the last one of an odd number has no other."""
    other = ranks.rank ^ 1
    if other >= ranks.world_size:
        return
    if ranks.rank < other:
        distributed.send(x, other)
        distributed.recv(x, other)
    else:
        distributed.recv(x, other)
        distributed.send(x, other)


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
