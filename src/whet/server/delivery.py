"""How deltas get from the engine's thread to whoever reads them, in another thread or in asyncio."""

import asyncio
import queue
from collections.abc import AsyncIterator, Callable, Iterator

from whet.server.completion import Delta

Abort = Callable[[str], None]


class DeltaStream(Iterator[Delta]):
    """The deltas of one request, in a plain loop. Closing it, or dropping it half-read, aborts the request."""

    def __init__(self, abort: Abort) -> None:
        self.request_id = ""
        self._abort = abort
        self._deltas: queue.SimpleQueue[Delta] = queue.SimpleQueue()
        self._is_done = False
        self.put = self._deltas.put

    def __next__(self) -> Delta:
        if self._is_done:
            raise StopIteration
        delta = self._deltas.get()
        self._is_done = delta.finish_reason is not None
        return delta

    def close(self) -> None:
        """Stop reading; the request ends where it is."""
        if not self._is_done and self.request_id:
            self._is_done = True
            self._abort(self.request_id)

    def __del__(self) -> None:
        self.close()


class AsyncStream(AsyncIterator[Delta]):
    """The deltas of one request, in `async for`. Closing it, or dropping it half-read, aborts the request."""

    def __init__(self, abort: Abort) -> None:
        self.request_id = ""
        self._abort = abort
        self._deltas: asyncio.Queue[Delta] = asyncio.Queue()
        self._is_done = False
        self.put = self._deltas.put_nowait

    async def __anext__(self) -> Delta:
        if self._is_done:
            raise StopAsyncIteration
        delta = await self._deltas.get()
        self._is_done = delta.finish_reason is not None
        return delta

    async def aclose(self) -> None:
        """Stop reading; the request ends where it is."""
        self._close()

    def _close(self) -> None:
        if not self._is_done and self.request_id:
            self._is_done = True
            self._abort(self.request_id)

    def __del__(self) -> None:
        self._close()


class Post:
    """Deltas on their way to asyncio loops: collected during a step, one call into each loop at its end."""

    def __init__(self) -> None:
        self._bags: dict[asyncio.AbstractEventLoop, list[tuple[Callable[[Delta], None], Delta]]] = {}

    def sink(self, loop: asyncio.AbstractEventLoop, put: Callable[[Delta], None]) -> Callable[[Delta], None]:
        """What the engine calls for a request whose reader lives in that loop."""

        def collect(delta: Delta) -> None:
            self._bags.setdefault(loop, []).append((put, delta))

        return collect

    def deliver(self) -> list[str]:
        """Hand over what was collected. Returns the requests whose loop is closed: nobody reads them any more."""
        bags, self._bags = self._bags, {}
        lost = []
        for loop, bag in bags.items():
            try:
                loop.call_soon_threadsafe(_put_all, bag)
            except RuntimeError:  # the loop is closed
                lost += [delta.request_id for _, delta in bag]
        return lost


def _put_all(bag: list[tuple[Callable[[Delta], None], Delta]]) -> None:
    for put, delta in bag:
        put(delta)
