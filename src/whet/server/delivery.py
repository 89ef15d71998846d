"""Deliver deltas from the engine's thread to their readers, in another thread or in asyncio."""

import asyncio
import logging
import queue
from collections.abc import AsyncIterator, Callable, Iterator

from whet.server.batching.loop_mail import LoopMail
from whet.server.completion import Delta

Abort = Callable[[str], None]
OnDelta = Callable[[Delta], None]

_LOG = logging.getLogger("whet")


class _Stream:
    """Bring the deltas of one request to one reader. Dropping the stream half-read aborts the request."""

    def __init__(self, abort: Abort) -> None:
        self.request_id = ""
        self._abort = abort
        self._is_done = False

    def close(self) -> None:
        """Stop reading, and abort the request unless it has ended."""
        if not self._is_done and self.request_id:
            self._is_done = True
            self._abort(self.request_id)

    def _seen(self, delta: Delta) -> Delta:
        self._is_done = delta.finish_reason is not None
        return delta

    def __del__(self) -> None:
        self.close()


class DeltaStream(_Stream, Iterator[Delta]):
    """Iterate over the deltas of one request. Closing the stream, or dropping it half-read, aborts the request."""

    def __init__(self, abort: Abort) -> None:
        super().__init__(abort)
        self._deltas: queue.SimpleQueue[Delta] = queue.SimpleQueue()
        self.put = self._deltas.put

    def __next__(self) -> Delta:
        if self._is_done:
            raise StopIteration
        return self._seen(self._deltas.get())


class AsyncStream(_Stream, AsyncIterator[Delta]):
    """Iterate over the deltas of one request with `async for`. Closing it, or dropping it half-read, aborts it."""

    def __init__(self, abort: Abort) -> None:
        super().__init__(abort)
        self._deltas: asyncio.Queue[Delta] = asyncio.Queue()
        self.put = self._deltas.put_nowait

    async def __anext__(self) -> Delta:
        if self._is_done:
            raise StopAsyncIteration
        return self._seen(await self._deltas.get())

    async def aclose(self) -> None:
        self.close()


class AsyncBridge(LoopMail[tuple[OnDelta, Delta]]):
    """Bring deltas from the engine's thread to asyncio loops. Each loop is woken once for each step.

    `abort` ends a request whose reader fails or whose loop is closed. Any thread must be able to call it.
    """

    def __init__(self, abort: Abort) -> None:
        super().__init__(
            give=lambda read: give(*read, abort),
            lost=lambda read: abort(read[1].request_id),  # the loop is closed, so nothing reads the delta
        )

    def to_loop(self, loop: asyncio.AbstractEventLoop, on_delta: OnDelta) -> OnDelta:
        """Return a callback for the engine's thread that has `on_delta` called in the loop."""
        return lambda delta: self.put(loop, (on_delta, delta))


def give(on_delta: OnDelta, delta: Delta, abort: Abort) -> None:
    """Pass a delta to its reader. If the reader fails, abort its request; other requests are not affected."""
    try:
        on_delta(delta)
    except Exception:  # noqa: BLE001 - the callback is the caller's code
        _LOG.exception("request %s is aborted: its reader failed", delta.request_id)
        abort(delta.request_id)
