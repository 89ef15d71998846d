"""Run the server: uvicorn on a socket, with an orderly shutdown."""

import asyncio
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import uvicorn

from whet.network import http_url, listen
from whet.server.engine import Engine
from whet.server.http.app import make_app
from whet.server.http.connection import Connection
from whet.server.http.lifecycle import Lifecycle
from whet.server.http.listener import Listener, most_connections
from whet.server.http.models import Models
from whet.server.http.settings import Settings

_BACKLOG = 1024
_START_S = 10.0
_CLOSE_S = 5  # how long slow clients may take to read the end of their answers
_KEEP_ALIVE_S = 75
_SWITCH_S = 0.0002  # how long a thread may keep Python's lock while another one wants it; Python's default is 5 ms


class HttpServer:
    """Serve an engine, or several models, on a bound socket.

    It serves in this thread (`run`), or in one of its own (`start`, `stop`).

    Raises:
        OptionError: Another process has begun to listen on the port in the meantime.
    """

    def __init__(self, served: Engine | Models, settings: Settings, bound: socket.socket) -> None:
        self._lifecycle = Lifecycle()
        self._settings = settings
        self._socket = bound
        self.host, self.port = bound.getsockname()[:2]
        app = make_app(served, settings, self._lifecycle)
        self._intake = app.state.intake
        config = uvicorn.Config(
            app,
            http=Connection,
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_CLOSE_S,
        )
        self._server = _Server(config, settings)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        listen(bound, _BACKLOG)

    @property
    def url(self) -> str:
        """Return the URL of the server."""
        return http_url(self.host, self.port, is_tls=bool(self._settings.ssl_certfile))

    def run(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """Serve until SIGTERM or Ctrl-C, then drain. A second signal ends the server at once.

        Call it in the main thread only. It shortens the time for which a thread of this process may keep Python's lock.
        A step of the engine releases the lock dozens of times; with Python's default, it could wait 5 ms each time
        while a large answer is written.

        Args:
            on_ready: Called once the server takes requests.
        """
        sys.setswitchinterval(_SWITCH_S)
        asyncio.run(self._serve(on_ready, has_signals=True))

    def start(self) -> None:
        """Serve in a thread, and return once the server takes requests."""
        is_ready = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(is_ready.set, has_signals=False)), name="whet-serve", daemon=True
        )
        self._thread.start()
        is_ready.wait(_START_S)

    def begin_end(self) -> None:
        """Begin to drain; the server then ends. Any thread may call this."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._end)

    def stop(self) -> None:
        """Drain, wait for the thread to end, and close the socket."""
        self.begin_end()
        if self._thread is not None:
            self._thread.join()
        self._socket.close()

    async def _serve(self, on_ready: Callable[[], None], *, has_signals: bool) -> None:
        self._loop = asyncio.get_running_loop()
        if has_signals:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._loop.add_signal_handler(number, self._end)
        self._loop.call_soon(self._ready, on_ready)
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            await self._intake.close()

    def _ready(self, on_ready: Callable[[], None]) -> None:
        self._lifecycle.ready()
        on_ready()

    def _end(self) -> None:
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._drain())
        else:
            self._server.force_exit = self._server.should_exit = True

    async def _drain(self) -> None:
        await self._lifecycle.drain(self._settings.shutdown_timeout_s)
        self._server.should_exit = True


class _Server(uvicorn.Server):
    """Run uvicorn with our own Listener and without uvicorn's signal handlers.

    asyncio's own listener logs a thousand tracebacks when file descriptors run out. uvicorn's signal handlers would
    close the port at once, and the process would end by the signal instead of with exit code 0.
    """

    def __init__(self, config: uvicorn.Config, settings: Settings) -> None:
        super().__init__(config)
        self._settings = settings

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Do what uvicorn's `startup` does, with our own listeners."""
        await self.lifespan.startup()
        most = most_connections(self._settings.max_connections)
        connections = cast("set[Connection]", self.server_state.connections)
        tls, timeout_s = self._settings.tls(), self._settings.head_timeout_s
        listeners = [
            Listener(one, self._connection, connections, most, tls=tls, handshake_s=timeout_s) for one in sockets or ()
        ]
        self.servers = listeners  # type: ignore[assignment]
        self.started = True

    def _connection(self) -> Connection:
        state = self.lifespan.state
        return Connection(config=self.config, server_state=self.server_state, app_state=state, settings=self._settings)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
