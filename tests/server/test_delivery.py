"""The bridge from the engine's thread to asyncio: one wake-up a step, and a reader that fails loses only its own."""

import asyncio
import logging
from unittest.mock import patch

import pytest

from whet.server.completion import Delta
from whet.server.delivery import AsyncBridge


def deltas(*request_ids: str) -> list[Delta]:
    return [Delta(request_id) for request_id in request_ids]


def test_all_of_a_step_comes_in_order_with_one_wake_up() -> None:
    aborted: list[str] = []
    seen: list[str] = []

    async def read() -> int:
        loop = asyncio.get_running_loop()
        bridge = AsyncBridge(aborted.append)
        sinks = [bridge.to_loop(loop, lambda delta: seen.append(delta.request_id)) for _ in range(2)]
        with patch.object(loop, "call_soon_threadsafe", wraps=loop.call_soon_threadsafe) as wake_up:
            for sink, delta in zip([*sinks, *sinks], deltas("a", "b", "c", "d"), strict=True):
                sink(delta)
            bridge.deliver()
            bridge.deliver()  # with nothing new
            await asyncio.sleep(0)
            return wake_up.call_count

    assert asyncio.run(read()) == 1
    assert seen == ["a", "b", "c", "d"]
    assert aborted == []


def test_a_reader_that_raises_loses_its_own_request(caplog: pytest.LogCaptureFixture) -> None:
    aborted: list[str] = []
    seen: list[str] = []

    def fail(delta: Delta) -> None:
        raise ValueError("a bad reader")

    async def read() -> None:
        loop = asyncio.get_running_loop()
        bridge = AsyncBridge(aborted.append)
        bad, good = bridge.to_loop(loop, fail), bridge.to_loop(loop, lambda delta: seen.append(delta.request_id))
        for sink, delta in zip([bad, good], deltas("a", "b"), strict=True):
            sink(delta)
        bridge.deliver()
        await asyncio.sleep(0)

    with caplog.at_level(logging.CRITICAL):
        asyncio.run(read())
    assert (aborted, seen) == (["a"], ["b"])


def test_a_closed_loop_loses_its_requests() -> None:
    aborted: list[str] = []
    bridge = AsyncBridge(aborted.append)
    loop = asyncio.new_event_loop()
    sink = bridge.to_loop(loop, lambda delta: None)
    loop.close()
    sink(Delta("a"))
    bridge.deliver()
    assert aborted == ["a"]
