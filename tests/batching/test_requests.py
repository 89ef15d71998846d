"""Requests of several samples: all are queued or none, and one that fails does not harm those of others."""

import threading

import pytest
import torch
from torch import Tensor

from whet.batching.batcher import DynamicBatcher
from whet.errors import QueueFull


def test_the_samples_of_a_request_are_queued_together_or_not_at_all() -> None:
    gate, begun = threading.Event(), threading.Event()

    def held(x: Tensor) -> Tensor:
        begun.set()
        assert gate.wait(10)
        return x * 2

    with DynamicBatcher(held, max_wait_ms=0, max_waiting=3) as batcher:
        first = batcher.submit_all([torch.ones(1)])
        assert begun.wait(10)
        waiting = batcher.submit_all([torch.full((1,), 2.0), torch.full((1,), 3.0)])
        with pytest.raises(QueueFull, match="2 samples wait already"):
            batcher.submit_all([torch.ones(1)] * 2)
        assert batcher.stats().num_waiting == 2
        cancelled = batcher.submit_all([torch.ones(1)])
        assert cancelled.cancel()
        assert batcher.stats().num_waiting == 2
        gate.set()
        assert [y.item() for y in first.result(10) + waiting.result(10)] == [2, 4, 6]
        assert batcher.submit_all([]).result(10) == []


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
        batcher.submit_all([torch.tensor([float(i)]) for i in (9, 1, 2)]).result(10)
