"""Run an ASGI application by uvicorn on a bound socket, with an orderly end."""

import asyncio
import os
import signal
import socket
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import uvicorn

from whet.ui.network import address_of, listen

_START_S = 10.0
_STUCK_S = 5.0  # an event loop that does nothing for so long after a signal is stuck
_LAST_S = 8.0  # for what still runs in threads once the server has finished
_ENDING = (signal.SIGTERM, signal.SIGINT)


class UvicornWithoutSignals(uvicorn.Server):
    """Run uvicorn without its signal handlers, which close the port at once and exit by the signal, not with code 0."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def uvicorn_config(app: Any, **options: Any) -> uvicorn.Config:
    """Return what uvicorn serves an application with: it logs what fails alone, and does not name itself."""
    return uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, lifespan="off", **options)


class AsgiServer(ABC):
    """Serve on a bound socket, in this thread (`run`), or in one of its own that is called `name` (`start`, `stop`).

    Clients can connect at once. With `listens_later`, they can once the subclass has called `listen`.

    Raises:
        OptionError: Another process has begun to listen on the port in the meantime.
    """

    hears_hangup = False  # whether SIGHUP calls `_hang_up`; otherwise it ends the process, as always

    def __init__(
        self,
        server: UvicornWithoutSignals,
        bound: socket.socket,
        *,
        backlog: int,
        name: str,
        listens_later: bool = False,
    ) -> None:
        self.host, self.port = address_of(bound)
        self._server = server
        self._socket = bound
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        self._has_finished, self._has_ended = threading.Event(), threading.Event()
        if not listens_later:
            listen(bound, backlog)

    def run(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """Serve until SIGTERM or Ctrl-C. A second signal ends the work at once. Call it in the main thread only.

        If the server does not end by itself, since some code never returns, the process ends with exit code 1.
        `on_ready` is called once the server takes requests.
        """
        try:
            asyncio.run(self._run(on_ready, has_signals=True))
        finally:
            self._has_ended.set()

    def start(self) -> None:
        """Serve in a thread, and return once the server takes requests."""
        is_ready = threading.Event()

        def serve() -> None:
            try:
                asyncio.run(self._run(is_ready.set, has_signals=False))
            finally:
                is_ready.set()  # nobody waits for what has failed

        self._thread = threading.Thread(target=serve, name=self._name, daemon=True)
        self._thread.start()
        is_ready.wait(_START_S)

    def begin_end(self) -> None:
        """Begin to end; the server then ends by itself. Any thread may call this."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: the server has ended
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

    def _hang_up(self) -> None:
        """Do what SIGHUP asks for. It is called on the event loop, if `hears_hangup`."""
        raise NotImplementedError

    async def _run(self, on_ready: Callable[[], None], *, has_signals: bool) -> None:
        self._loop = asyncio.get_running_loop()
        if not has_signals:
            await self._serve(on_ready)
            return
        for number in _ENDING:
            self._loop.add_signal_handler(number, self._end)
        if self.hears_hangup:
            self._loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        heard, written = socket.socketpair()
        written.setblocking(False)
        with heard, written:
            # A thread hears of signals even while the event loop is stuck. The loop hears of them from the thread.
            signal.set_wakeup_fd(written.fileno())
            threading.Thread(target=self._hear, args=(heard, self._loop), name="whet-signals", daemon=True).start()
            try:
                await self._serve(on_ready)
            finally:
                signal.set_wakeup_fd(-1)
                written.shutdown(socket.SHUT_WR)

    def _hear(self, heard: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to end with each signal, and see to it after the first one that the process ends."""
        is_first = True
        while number := heard.recv(1):
            if number[0] not in _ENDING:
                if self.hears_hangup and number[0] == signal.SIGHUP:
                    loop.call_soon_threadsafe(self._hang_up)
                continue
            loop.call_soon_threadsafe(self._end)
            if is_first:
                threading.Thread(target=self._end_in_time, args=(loop,), name="whet-end", daemon=True).start()
            is_first = False

    def _end_in_time(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._has_finished.wait(1.0):
            has_turned = threading.Event()
            try:
                loop.call_soon_threadsafe(has_turned.set)
            except RuntimeError:  # the loop is closed
                break
            if not has_turned.wait(_STUCK_S):
                break
        if not self._has_ended.wait(_LAST_S):
            sys.stderr.write("whet: the server was ended while some of its code still ran\n")
            sys.stderr.flush()
            os._exit(1)

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
            self._has_finished.set()
