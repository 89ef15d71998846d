"""Time calls: warm up until times settle, then repeat until the budget ends; alone, or in interleaved pairs.

Calls are timed in short blocks. The machine's load is read before and after each block, and a disturbed block is
measured again, until there is as much quiet time as was asked for, or three times as much has passed.
"""

import gc
import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from whet.errors import named_reason
from whet.measure.clocks import Clocks
from whet.measure.load import NO_LOAD, Load, Read, cause_of, meter, quiet_blocks, total
from whet.measure.measurable import Measurable
from whet.measure.stats import percentile
from whet.ui.figures import MIN_SAMPLES_FOR_P99

Call = Callable[[], Any]

_BLOCK_CALLS = 3  # different calls in one block of a pair, at most
_BLOCK_S = 0.1  # between two readings of the load, which together take less than a thousandth of it
_PATIENCE = 3  # times as long as asked for may a measurement take, where blocks of it are disturbed
_ENOUGH = 0.5  # of the time asked for has to be quiet


@dataclass(frozen=True)
class Measurement:
    """Times of single calls in seconds, warm, in the order they were taken: `num_calls` different ones in turn.

    Attributes:
        samples_s: Times from quiet blocks; from all blocks where `cause` says that the machine was busy.
        stopped_by: What a call raised, where the samples before it were kept.
        load: What the machine did beside all blocks, the disturbed ones included.
        cause: What disturbed the measurement, where too few blocks were quiet; "" for a quiet measurement.
        numbers: Which call each sample was, the warm-up included, from 0 on.
    """

    samples_s: tuple[float, ...]
    num_samples_per_call: float = 1
    num_calls: int = 1
    stopped_by: str | None = None
    load: Load = NO_LOAD
    cause: str = ""
    numbers: tuple[int, ...] = ()

    @property
    def latency_ms(self) -> float:
        """Return the median milliseconds per call.

        With several different calls it is the mean of their medians: one median over unequal calls describes none.
        """
        return _seconds_per_call(self.samples_s, self.num_calls) * 1e3

    @property
    def p90_ms(self) -> float:
        return percentile(self.samples_s, 90) * 1e3

    @property
    def p99_ms(self) -> float | None:
        """Return the 99th percentile of the calls, in milliseconds; None where there are too few samples."""
        return percentile(self.samples_s, 99) * 1e3 if len(self.samples_s) >= MIN_SAMPLES_FOR_P99 else None

    @property
    def throughput(self) -> float:
        """Return the samples per second."""
        return self.num_samples_per_call * 1e3 / self.latency_ms


@dataclass(frozen=True)
class Pairs:
    """Hold the times of two variants, measured in blocks side by side: median seconds per call, by block.

    `cause` says what disturbed the measurement; "" for a quiet one.
    """

    first: tuple[float, ...]
    second: tuple[float, ...]
    load: Load = NO_LOAD
    cause: str = ""


def measure_calls(
    calls: Sequence[Call],
    *,
    budget_s: float = 1.0,
    min_calls: int = 5,
    num_samples_per_call: float = 1,
    keeps_partial: bool = False,
    context: AbstractContextManager[object] | None = None,
    is_warm: bool = False,
    read: Read | None = None,
) -> Measurement:
    """Time `calls` in turn, warm, in whole rounds, for `budget_s` quiet seconds and at least `min_calls` calls.

    Args:
        num_samples_per_call: Samples that one call works on, for the throughput.
        keeps_partial: Where a call raises after at least one whole round was timed, keep what was
            timed, and say so in `stopped_by`. Else the exception goes on.
        context: What all calls are made in; without gradients, by default.
        is_warm: Whether the first call is timed already, and none is made to let times settle.
        read: Where readings of the load come from: the kernel, by default.
    """
    read = read or meter()
    blocks: list[list[float]] = []
    loads: list[Load] = []
    stopped_by = None
    with no_collection(), context or torch.no_grad():
        num_before = 0 if is_warm else warm_up(calls, budget_s=budget_s)
        clocks = Clocks()
        try:
            while not _is_enough(blocks, loads, budget_s, min_calls):
                blocks.append([])
                before = read()
                _timed_calls(calls, min(_BLOCK_S, budget_s), 1, blocks[-1])
                loads.append(before.until(read()))
        except Exception as error:
            del blocks[-1][len(blocks[-1]) - len(blocks[-1]) % len(calls) :]
            if not keeps_partial or not any(blocks):
                raise
            stopped_by = named_reason(error)
            loads.append(NO_LOAD)
    is_quiet = quiet_blocks(loads)
    quiet = list(itertools.compress(blocks, is_quiet))
    has_enough = sum(map(len, quiet)) >= min_calls and sum(map(sum, quiet)) >= _ENOUGH * budget_s
    cause = "" if has_enough or stopped_by else cause_of(loads)
    cause = cause or clocks.cause()
    begins = itertools.accumulate(map(len, blocks[:-1]), initial=num_before)
    numbered = by_number(blocks, begins, itertools.repeat(True) if cause or stopped_by else is_quiet)
    return Measurement(
        samples_s=tuple(numbered.values()),
        numbers=tuple(numbered),
        num_samples_per_call=num_samples_per_call,
        num_calls=len(calls),
        stopped_by=stopped_by,
        load=total(loads),
        cause=cause,
    )


def by_number(blocks: Sequence[Sequence[float]], begins: Iterable[int], is_kept: Iterable[bool]) -> dict[int, float]:
    """Return the times of the calls in kept blocks, by number; `begins` holds the number of each block's first call."""
    found: dict[int, float] = {}
    for block, begin, keeps in zip(blocks, begins, is_kept, strict=False):
        if keeps:
            found.update(enumerate(block, begin))
    return found


def time_measurable(measurable: Measurable, *, budget_s: float, min_calls: int = 5) -> Measurement:
    """Warm something measurable up, and time its calls for `budget_s` quiet seconds; see measure_calls.

    The calls of a sequence are timed right after its own warm-up, so that two variants are timed on the same calls.
    """
    with measurable.measuring():
        measurable.warm_up()
    return measure_calls(
        [measurable.once] * measurable.num_kinds,
        budget_s=budget_s,
        min_calls=min_calls,
        num_samples_per_call=measurable.num_samples,
        context=measurable.measuring(),
        is_warm=measurable.is_sequence,
    )


def _is_enough(blocks: Sequence[Sequence[float]], loads: Sequence[Load], budget_s: float, min_calls: int) -> bool:
    """Tell whether there is as much quiet time as was asked for, or so much time has gone by that it is no use."""
    if sum(map(len, blocks)) < min_calls:
        return False
    quiet = [block for block, is_quiet in zip(blocks, quiet_blocks(loads), strict=True) if is_quiet]
    if sum(map(sum, quiet)) >= budget_s and sum(map(len, quiet)) >= min_calls:
        return True
    return sum(map(sum, blocks)) >= _PATIENCE * budget_s and sum(map(len, blocks)) >= _PATIENCE * min_calls


def measure_pairs(
    first: Sequence[Call],
    second: Sequence[Call],
    *,
    budget_s: float = 2.0,
    num_pairs: int = 8,
    seed: int = 0,
    read: Read | None = None,
) -> Pairs:
    """Time two variants in interleaved blocks whose order is random within each pair, until `num_pairs` were quiet.

    first[i] and second[i] are the same call. The two blocks of a pair make the same few calls in whole rounds, however
    many of them fit in: with unequal batches, a slow variant would else be timed on others than a fast one. A pair in
    which either block was disturbed is measured again, up to three times as many pairs in all.

    The two share a process, so this screens; the final word is given between processes. The first calls of a block
    are thrown away: they pay for the other variant's caches and for its threads that still spin.
    """
    read = read or meter()
    order = random.Random(seed)
    block_s = budget_s / (2 * num_pairs)
    medians: list[tuple[float, float]] = []
    loads: list[Load] = []  # of both blocks of a pair, one after the other
    with no_collection(), torch.no_grad():
        warm_up(first, budget_s=budget_s / 4)
        warm_up(second, budget_s=budget_s / 4)
        clocks = Clocks()
        for i in range(_PATIENCE * num_pairs):
            taken = {}
            for which in order.sample((0, 1), 2):
                before = read()
                taken[which] = time_block(_window((first, second)[which], i), budget_s=block_s).seconds
                loads.append(before.until(read()))
            medians.append((taken[0], taken[1]))
            if sum(_quiet_pairs(loads)) >= num_pairs:
                break
    quiet = _quiet_pairs(loads)
    cause = clocks.cause() if sum(quiet) >= _ENOUGH * num_pairs else cause_of(loads)
    kept = [pair for pair, is_quiet in zip(medians, quiet, strict=True) if is_quiet or cause]
    return Pairs(tuple(a for a, _ in kept), tuple(b for _, b in kept), total(loads), cause)


def _quiet_pairs(loads: Sequence[Load]) -> list[bool]:
    """Tell for each pair of neighbouring blocks whether both were quiet."""
    quiet = quiet_blocks(loads)
    return [a and b for a, b in zip(quiet[::2], quiet[1::2], strict=True)]


@dataclass(frozen=True)
class Block:
    """Hold the times of one short block of calls.

    Attributes:
        seconds: Median seconds per call. With several different calls, the mean of their medians.
        samples_s: Seconds of each call, without the first `num_dropped` ones.
    """

    seconds: float
    samples_s: tuple[float, ...]
    num_dropped: int


def time_block(calls: Sequence[Call], *, budget_s: float) -> Block:
    """Time one short block, in whole rounds of `calls`. The times of the first calls are discarded."""
    num_dropped = len(_timed_calls(calls[:1], budget_s / 5, 1))
    samples = _timed_calls(calls, budget_s, 3)
    return Block(_seconds_per_call(samples, len(calls)), tuple(samples), num_dropped)


def warm_up(calls: Sequence[Call], *, budget_s: float, tolerance: float = 0.05) -> int:
    """Call until the times of two successive windows agree within `tolerance`, or the budget ends.

    The first call does not count against the budget, since it may compile. Returns the number of calls.
    """
    for call in calls:
        call()
    started = time.perf_counter()
    num_calls = len(calls)
    previous = None
    while time.perf_counter() - started < budget_s:
        samples = _timed_calls(calls, min(0.05, budget_s / 4), 3)
        num_calls += len(samples)
        window = _seconds_per_call(samples, len(calls))
        if previous is not None and abs(window - previous) <= tolerance * previous:
            break
        previous = window
    return num_calls


def _window(calls: Sequence[Call], i: int) -> list[Call]:
    """Return the calls for the i-th pair of blocks."""
    size = min(_BLOCK_CALLS, len(calls))
    return [calls[(i * size + j) % len(calls)] for j in range(size)]


def _seconds_per_call(samples: Sequence[float], num_calls: int) -> float:
    """Return each call's median in seconds, averaged over the `num_calls` calls that were made in turn."""
    return statistics.fmean(statistics.median(samples[i::num_calls]) for i in range(num_calls))


def _timed_calls(
    calls: Sequence[Call], budget_s: float, min_calls: int, samples: list[float] | None = None
) -> list[float]:
    """Return the seconds of each call, in whole rounds of `calls`: at least `min_calls`, for at least `budget_s`.

    `samples` is an empty list to fill. It keeps the times that were measured before a call raised.
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


def synchronize() -> None:
    """Wait for the current GPU where one is in use; nothing on a CPU."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


@contextmanager
def no_collection() -> Iterator[None]:
    """Collect garbage now and not inside the block: a timed call would pay for what others left."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
