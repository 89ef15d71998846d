"""Run the server: uvicorn on a socket, with an orderly shutdown."""

import asyncio
import socket
import sys
from collections.abc import Callable
from typing import cast

import uvicorn

from whet.server.compiling import COMPILERS
from whet.server.engine import Engine
from whet.server.http.app import make_app
from whet.server.http.connection import Connection
from whet.server.http.lifecycle import Lifecycle
from whet.server.http.listener import Listener, most_connections
from whet.server.http.models import Models
from whet.server.http.settings import Settings
from whet.server.rendering import RENDERERS
from whet.ui.asgi_server import AsgiServer, UvicornWithoutSignals, uvicorn_config
from whet.ui.network import http_url

_BACKLOG = 1024
_CLOSE_S = 5  # how long slow clients may take to read the end of their answers
_KEEP_ALIVE_S = 75
_CHILDREN_S = 1.0  # how long a schema that compiles and a template that renders may still take at the end
_SWITCH_S = 0.0002  # how long a thread may keep Python's lock while another one wants it; Python's default is 5 ms


class HttpServer(AsgiServer):
    """Serve an engine, or several models, on a bound socket. At the end, requests that run are answered.

    Raises:
        OptionError: Another process has begun to listen on the port in the meantime.
    """

    def __init__(self, served: Engine | Models, settings: Settings, bound: socket.socket) -> None:
        self._lifecycle = Lifecycle()
        self._settings = settings
        self._is_alone = False  # whether the process serves nothing else
        app = make_app(served, settings, self._lifecycle)
        self._intake = app.state.intake
        config = uvicorn_config(
            app,
            http=Connection,
            ws="none",
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_CLOSE_S,
        )
        super().__init__(_Server(config, settings), bound, backlog=_BACKLOG, name="whet-serve")

    @property
    def url(self) -> str:
        return http_url(self.host, self.port, is_tls=bool(self._settings.ssl_certfile))

    def run(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """Serve until SIGTERM or Ctrl-C, then drain. A second signal ends the server at once.

        Call it in the main thread only. It shortens the time for which a thread of this process may keep Python's lock.
        A step of the engine releases the lock dozens of times; with Python's default, it could wait 5 ms each time
        while a large answer is written.
        """
        sys.setswitchinterval(_SWITCH_S)
        self._is_alone = True
        super().run(on_ready)

    async def _serve(self, on_ready: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(self._ready, on_ready)
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            await self._intake.close()

    def _ready(self, on_ready: Callable[[], None]) -> None:
        self._lifecycle.ready()
        on_ready()

    async def _finish(self) -> None:
        if self._is_alone:
            loop = asyncio.get_running_loop()
            for children in (COMPILERS, RENDERERS):  # what they do takes milliseconds, or goes on for long
                loop.call_later(_CHILDREN_S, children.end)
        await self._lifecycle.drain(self._settings.shutdown_timeout_s)

    def _end_at_once(self) -> None:
        self._server.force_exit = self._server.should_exit = True


class _Server(UvicornWithoutSignals):
    """Run uvicorn with our own Listener: asyncio's logs a thousand tracebacks when file descriptors run out."""

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
