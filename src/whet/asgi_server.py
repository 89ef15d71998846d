"""Run an ASGI application by uvicorn on a bound socket, with an orderly end."""

import asyncio
import signal
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from whet.network import listen

_START_S = 10.0


class UvicornWithoutSignals(uvicorn.Server):
    """Run uvicorn without its signal handlers.

    They would close the port at once, and the process would end with the signal instead of exit code 0.
    """

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals as they are."""
        yield


class AsgiServer(ABC):
    """Serve on a bound socket, in this thread (`run`), or in one of its own (`start`, `stop`).

    Args:
        server: What serves the application.
        bound: The socket.
        backlog: The most connections that wait to be accepted.
        name: The name of the thread that `start` makes.

    Raises:
        OptionError: Another process has begun to listen on the port in the meantime.
    """

    def __init__(self, server: UvicornWithoutSignals, bound: socket.socket, *, backlog: int, name: str) -> None:
        self.host, self.port = bound.getsockname()[:2]
        self._server = server
        self._socket = bound
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        listen(bound, backlog)

    def run(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """Serve until SIGTERM or Ctrl-C. A second signal ends the work at once. Call it in the main thread only.

        Args:
            on_ready: Called once the server takes requests.
        """
        asyncio.run(self._run(on_ready, has_signals=True))

    def start(self) -> None:
        """Serve in a thread, and return once the server takes requests."""
        is_ready = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run(is_ready.set, has_signals=False)), name=self._name, daemon=True
        )
        self._thread.start()
        is_ready.wait(_START_S)

    def begin_end(self) -> None:
        """Begin to end; the server then ends by itself. Any thread may call this."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._end)

    def stop(self) -> None:
        """End what runs, wait for the thread, and close the socket."""
        if self._thread is not None:
            self.begin_end()
            self._thread.join()
        self._socket.close()

    @abstractmethod
    async def _serve(self, on_ready: Callable[[], None]) -> None:
        """Serve until `_server.should_exit`."""

    @abstractmethod
    async def _finish(self) -> None:
        """End what runs, or wait until it has ended. The server exits afterwards."""

    @abstractmethod
    def _end_at_once(self) -> None:
        """End although something still runs: a second signal came."""

    async def _run(self, on_ready: Callable[[], None], *, has_signals: bool) -> None:
        self._loop = asyncio.get_running_loop()
        if has_signals:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._loop.add_signal_handler(number, self._end)
        await self._serve(on_ready)

    def _end(self) -> None:
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._close())
        else:
            self._end_at_once()

    async def _close(self) -> None:
        try:
            await self._finish()
        finally:
            self._server.should_exit = True
