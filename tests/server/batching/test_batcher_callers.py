"""The batcher under several callers: threads and coroutines, cancelled samples, errors, and its end."""

import asyncio
import threading
from concurrent.futures import CancelledError

import pytest
import torch
from held_batcher import LONG_MS, Gate, busy
from torch import Tensor

from whet.errors import EngineClosed, QueueFull
from whet.server.batching.batcher import DynamicBatcher


def test_from_many_threads() -> None:
    found: dict[int, list[float]] = {}

    def client(number: int, batcher: DynamicBatcher) -> None:
        values = [batcher.submit(torch.full((1 + number % 3,), float(number * 100 + i))) for i in range(40)]
        found[number] = [future.result(30)[0].item() for future in values]

    with DynamicBatcher(lambda x: x + 0.5, max_batch=7, max_wait_ms=1.0, cut=True) as batcher:
        threads = [threading.Thread(target=client, args=(number, batcher)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert found == {number: [number * 100 + i + 0.5 for i in range(40)] for number in range(8)}
    assert batcher.stats().num_samples == 320


def test_from_coroutines() -> None:
    async def ask(batcher: DynamicBatcher) -> list[float]:
        answers = await asyncio.gather(*(batcher(torch.tensor([float(i)])) for i in range(9)))
        return [answer.item() for answer in answers]

    with DynamicBatcher(lambda x: x * x, max_batch=4, max_wait_ms=1.0) as batcher:
        assert asyncio.run(ask(batcher)) == [i * i for i in range(9)]


def test_a_coroutine_that_is_cancelled_takes_its_sample_back() -> None:
    gate = Gate()

    async def give_up(batcher: DynamicBatcher) -> None:
        task = asyncio.create_task(batcher(torch.zeros(1)))
        while not batcher.stats().num_waiting:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with busy(gate) as batcher:
        asyncio.run(give_up(batcher))
        assert (batcher.stats().num_waiting, batcher.stats().num_cancelled) == (0, 1)
    assert len(gate.calls) == 1


def test_a_future_that_its_caller_resolves_holds_up_nobody() -> None:
    gate = Gate()
    with busy(gate) as batcher:
        given_up = batcher.submit(torch.ones(1))
        other = batcher.submit(torch.full((1,), 3.0))
        given_up.set_result(None)
        gate.go_on.release(2)
        assert other.result(30).item() == 6
    assert (given_up.result(0), batcher.stats().num_waiting) == (None, 0)


def test_cancelled_samples_are_not_run_and_make_room() -> None:
    gate = Gate()
    with busy(gate, max_waiting=2) as batcher:
        running = batcher.submit(torch.ones(1))
        other = batcher.submit(torch.ones(1))
        with pytest.raises(QueueFull, match="2 samples wait already"):
            batcher.submit(torch.ones(1))
        assert other.cancel()
        third = batcher.submit(torch.full((1,), 3.0))
        gate.go_on.release(2)
        assert running.result(30).item() == 2
        assert not running.cancel()
        gate.go_on.release()
        assert third.result(30).item() == 6
    assert len(gate.calls) == 3
    assert (batcher.stats().num_refused, batcher.stats().num_cancelled) == (1, 1)


def test_an_error_reaches_the_samples_of_its_batch_alone() -> None:
    def function(x: Tensor) -> Tensor:
        if (x < 0).any():
            raise ArithmeticError("negative")
        return x.sqrt()

    gate = Gate(function)
    with busy(gate, max_batch=2) as batcher:
        values = [1.0, 4.0, -1.0, 9.0, 16.0, 25.0]
        futures = [batcher.submit(torch.tensor([value])) for value in values]
        gate.go_on.release(4)
        assert [futures[i].result(30).item() for i in (0, 1, 4, 5)] == [1, 2, 4, 5]
        for i in (2, 3):
            with pytest.raises(ArithmeticError, match="negative"):
                futures[i].result(30)
    assert batcher.stats().num_failed == 2


def test_the_thread_survives_whatever_a_function_raises() -> None:
    def leaves(x: Tensor) -> Tensor:
        raise SystemExit(3)

    with DynamicBatcher(leaves, max_batch=1) as batcher:
        for _ in range(2):
            with pytest.raises(SystemExit):
                batcher.submit(torch.zeros(1)).result(30)


def test_closing_drains_or_cancels_and_ends_the_thread() -> None:
    before = threading.active_count()
    drained = DynamicBatcher(lambda x: x + 1, max_batch=8, max_wait_ms=LONG_MS)
    futures = [drained.submit(torch.zeros(1)) for _ in range(11)]
    drained.close()
    drained.close()
    assert [future.result(0).item() for future in futures] == [1] * 11
    with pytest.raises(EngineClosed):
        drained.submit(torch.zeros(1))
    dropped = DynamicBatcher(lambda x: x, max_batch=8, max_wait_ms=LONG_MS)
    future = dropped.submit(torch.zeros(1))
    dropped.close(drain=False)
    with pytest.raises(CancelledError):
        future.result(0)
    assert dropped.stats().num_cancelled == 1
    assert threading.active_count() == before


def test_a_function_may_close_its_own_batcher() -> None:
    batcher = DynamicBatcher(lambda x: (batcher.close(), x)[1], max_batch=1)
    assert batcher.submit(torch.ones(1)).result(30).item() == 1
    batcher.close()
