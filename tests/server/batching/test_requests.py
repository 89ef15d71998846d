"""Requests of several samples: all are queued or none, and one that fails does not harm those of others."""

import asyncio
import threading

import pytest
import torch
from torch import Tensor

from whet.errors import QueueFull
from whet.server.batching.batcher import DynamicBatcher


def test_the_samples_of_a_request_are_queued_together_or_not_at_all() -> None:
    gate, begun = threading.Event(), threading.Event()

    def held(x: Tensor) -> Tensor:
        begun.set()
        assert gate.wait(10)
        return x * 2

    async def requests(batcher: DynamicBatcher) -> list[float]:
        first = asyncio.create_task(batcher.run_all([torch.ones(1)]))
        assert await asyncio.to_thread(begun.wait, 10)
        waiting = asyncio.create_task(batcher.run_all([torch.full((1,), 2.0), torch.full((1,), 3.0)]))
        await asyncio.sleep(0)
        with pytest.raises(QueueFull, match="2 samples wait already"):
            await batcher.run_all([torch.ones(1)] * 2)
        assert batcher.stats().num_waiting == 2
        cancelled = asyncio.create_task(batcher.run_all([torch.ones(1)]))
        await asyncio.sleep(0)
        assert batcher.stats().num_waiting == 3
        cancelled.cancel()
        await asyncio.wait([cancelled])
        assert (batcher.stats().num_waiting, batcher.stats().num_cancelled) == (2, 1)
        gate.set()
        assert await batcher.run_all([]) == []
        return [y.item() for y in [*await first, *await waiting]]

    with DynamicBatcher(held, max_wait_ms=0, max_waiting=3) as batcher:
        assert asyncio.run(asyncio.wait_for(requests(batcher), 30)) == [2, 4, 6]


def test_a_sample_that_the_function_does_not_take_fails_alone() -> None:
    gate, sizes = threading.Event(), []

    def picky(x: Tensor) -> Tensor:
        assert gate.wait(10)
        sizes.append(len(x))
        if bool((x > 5).any()):
            raise ValueError("too large")
        return x * 2

    with DynamicBatcher(picky, max_wait_ms=50, retry_alone=True) as batcher:
        futures = [batcher.submit(torch.tensor([float(i)])) for i in (1, 9, 2)]
        gate.set()
        assert [futures[i].result(10).item() for i in (0, 2)] == [2, 4]
        with pytest.raises(ValueError, match="too large"):
            futures[1].result(10)
        assert sizes == [3, 1, 1, 1]
        assert batcher.stats().num_failed == 1


def test_a_request_fails_with_its_first_sample_and_the_others_are_taken_back() -> None:
    def picky(x: Tensor) -> Tensor:
        if bool((x > 5).any()):
            raise ValueError("too large")
        return x * 2

    with DynamicBatcher(picky, max_batch=1, max_wait_ms=0) as batcher, pytest.raises(ValueError, match="too large"):
        asyncio.run(batcher.run_all([torch.tensor([float(i)]) for i in (9, 1, 2)]))


def test_a_batcher_that_closes_ends_the_requests_that_wait() -> None:
    gate, begun = threading.Event(), threading.Event()

    def held(x: Tensor) -> Tensor:
        begun.set()
        assert gate.wait(10)
        return x

    async def closed_meanwhile(batcher: DynamicBatcher) -> Tensor:
        first = asyncio.create_task(batcher.run_all([torch.ones(1)]))
        assert await asyncio.to_thread(begun.wait, 10)
        waiting = asyncio.create_task(batcher.run_all([torch.zeros(1), torch.zeros(1)]))
        await asyncio.sleep(0)
        closing = asyncio.create_task(asyncio.to_thread(batcher.close, drain=False))
        with pytest.raises(asyncio.CancelledError):
            await waiting
        gate.set()
        await closing
        [y] = await first
        assert isinstance(y, Tensor)
        return y

    assert asyncio.run(asyncio.wait_for(closed_meanwhile(DynamicBatcher(held, max_wait_ms=0)), 30)).item() == 1


def test_a_loop_that_is_closed_harms_no_other_request() -> None:
    gate, begun = threading.Event(), threading.Event()

    def held(x: Tensor) -> Tensor:
        begun.set()
        assert gate.wait(10)
        return x * 2

    left: list[asyncio.Task[list[Tensor]]] = []

    async def leave(batcher: DynamicBatcher) -> None:
        left.append(asyncio.create_task(batcher.run_all([torch.ones(1)])))
        assert await asyncio.to_thread(begun.wait, 10)

    with DynamicBatcher(held, max_wait_ms=0) as batcher:
        asyncio.run(leave(batcher))  # cancels the task and closes the loop while its sample runs
        gate.set()
        assert left[0].cancelled()
        [y] = asyncio.run(asyncio.wait_for(batcher.run_all([torch.full((1,), 3.0)]), 30))
        assert y.item() == 6
