"""Time calls: warm up until times settle, then repeat until the budget ends; alone, or in interleaved pairs."""

import gc
import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from whet.errors import reason
from whet.measure.stats import MIN_SAMPLES_FOR_P99, percentile

Call = Callable[[], Any]

_BLOCK_CALLS = 3  # different calls in one block of a pair, at most


@dataclass(frozen=True)
class Measurement:
    """Times of single calls in seconds, warm, in the order they were taken: `num_calls` different ones in turn."""

    samples_s: tuple[float, ...]
    num_samples_per_call: float = 1
    num_calls: int = 1
    stopped_by: str | None = None  # what a call raised, where the samples before it were kept

    @property
    def latency_ms(self) -> float:
        """The median; of several calls the mean of their medians, as one median over unequal calls would be of none."""
        return _seconds_per_call(self.samples_s, self.num_calls) * 1e3

    @property
    def p90_ms(self) -> float:
        return percentile(self.samples_s, 90) * 1e3

    @property
    def p99_ms(self) -> float | None:
        """None where there are too few samples to speak of a 99th percentile."""
        return percentile(self.samples_s, 99) * 1e3 if len(self.samples_s) >= MIN_SAMPLES_FOR_P99 else None

    @property
    def throughput(self) -> float:
        """Samples per second."""
        return self.num_samples_per_call * 1e3 / self.latency_ms


def measure_calls(
    calls: Sequence[Call],
    *,
    budget_s: float = 1.0,
    min_calls: int = 5,
    num_samples_per_call: float = 1,
    keeps_partial: bool = False,
) -> Measurement:
    """Time `calls` in turn, warm, in whole rounds, for `budget_s` seconds and at least `min_calls` calls.

    keeps_partial: where a call raises after at least one whole round was timed, keep what was timed, and say so in
    `stopped_by`. Else the exception goes on.
    """
    samples: list[float] = []
    stopped_by = None
    with quiet_collector():
        warm_up(calls, budget_s=budget_s)
        try:
            _take(calls, budget_s, min_calls, samples)
        except Exception as error:
            del samples[len(samples) - len(samples) % len(calls) :]
            if not keeps_partial or not samples:
                raise
            stopped_by = f"{type(error).__name__}: {reason(error)}"
    return Measurement(tuple(samples), num_samples_per_call, len(calls), stopped_by)


def measure_pairs(
    first: Sequence[Call],
    second: Sequence[Call],
    *,
    budget_s: float = 2.0,
    num_pairs: int = 8,
    seed: int = 0,
) -> tuple[list[float], list[float]]:
    """Median seconds per call of two variants, in interleaved blocks whose order is random within each pair.

    first[i] and second[i] are the same call. The two blocks of a pair make the same few calls in whole rounds, however
    many of them fit in: with unequal batches, a slow variant would else be timed on others than a fast one.

    The two share a process, so this screens; the final word is given between processes. The first calls of a block
    are thrown away: they pay for the other variant's caches and for its threads that still spin.
    """
    order = random.Random(seed)
    block_s = budget_s / (2 * num_pairs)
    medians: tuple[list[float], list[float]] = ([], [])
    with quiet_collector():
        warm_up(first, budget_s=budget_s / 4)
        warm_up(second, budget_s=budget_s / 4)
        for i in range(num_pairs):
            for which in order.sample((0, 1), 2):
                medians[which].append(time_block(_window((first, second)[which], i), budget_s=block_s))
    return medians


def time_block(calls: Sequence[Call], *, budget_s: float) -> float:
    """Median seconds per call over one short block, in whole rounds of `calls`; its first calls are thrown away."""
    _take(calls[:1], budget_s / 5, 1)
    return _seconds_per_call(_take(calls, budget_s, 3), len(calls))


def warm_up(calls: Sequence[Call], *, budget_s: float, tolerance: float = 0.05) -> int:
    """Call until the times of two successive windows agree within `tolerance`, or the budget ends.

    Returns the number of calls. The first call is not counted against the budget: it may compile.
    """
    for call in calls:
        call()
    started = time.perf_counter()
    num_calls = len(calls)
    previous = None
    while time.perf_counter() - started < budget_s:
        samples = _take(calls, min(0.05, budget_s / 4), 3)
        num_calls += len(samples)
        window = _seconds_per_call(samples, len(calls))
        if previous is not None and abs(window - previous) <= tolerance * previous:
            break
        previous = window
    return num_calls


def _window(calls: Sequence[Call], i: int) -> list[Call]:
    """The few calls whose turn it is in the i-th pair."""
    size = min(_BLOCK_CALLS, len(calls))
    return [calls[(i * size + j) % len(calls)] for j in range(size)]


def _seconds_per_call(samples: Sequence[float], num_calls: int) -> float:
    """Each call's median, averaged over the `num_calls` calls that were taken in turn."""
    return statistics.fmean(statistics.median(samples[i::num_calls]) for i in range(num_calls))


def _take(calls: Sequence[Call], budget_s: float, min_calls: int, samples: list[float] | None = None) -> list[float]:
    """Times of whole rounds of `calls`: at least `min_calls` of them, and for at least `budget_s` seconds.

    samples: an empty list to be filled, for who wants what was timed before a call raised.
    """
    samples = [] if samples is None else samples
    now = time.perf_counter_ns
    ends = now() + int(budget_s * 1e9)
    for call in itertools.cycle(calls):
        synchronize()
        started = now()
        call()
        synchronize()
        ended = now()
        samples.append((ended - started) / 1e9)
        if ended >= ends and len(samples) >= min_calls and len(samples) % len(calls) == 0:
            return samples
    return samples


def use_device_of(tensor: torch.Tensor) -> None:
    """Make the GPU that a tensor lies on the current one: what is waited for, and whose memory is read."""
    if tensor.device.type == "cuda":
        torch.cuda.set_device(tensor.device)


def synchronize() -> None:
    """Wait for the current GPU where one is in use; nothing on a CPU."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


@contextmanager
def quiet_collector() -> Iterator[None]:
    """No garbage collection inside a timed call: it would be billed to whoever is running."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        with torch.no_grad():
            yield
    finally:
        if enabled:
            gc.enable()
