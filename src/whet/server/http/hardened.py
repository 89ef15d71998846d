"""Run uvicorn with whet's own connections and listeners, which bound what each client may cost."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any, cast

from whet.server.http.connection import Connection
from whet.server.http.lifecycle import Lifecycle
from whet.server.http.listener import Listener, most_connections
from whet.server.http.settings import Settings
from whet.ui.asgi_server import AsgiServer, UvicornWithoutSignals, uvicorn_config
from whet.ui.network import http_url

BACKLOG = 1024
_CLOSE_S = 5  # how long slow clients may take to read the end of their answers
KEEP_ALIVE_S = 75


class HardenedServer(UvicornWithoutSignals):
    """Run uvicorn with our own Listener: asyncio's logs a thousand tracebacks when file descriptors run out."""

    def __init__(self, app: Any, settings: Settings) -> None:
        super().__init__(
            uvicorn_config(
                app,
                interface="asgi3",
                http=Connection,
                ws="none",
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=_CLOSE_S,
            )
        )
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


class WebServer(AsgiServer):
    """Serve an ASGI application on a bound socket. At the end, requests that run are answered.

    Raises:
        OptionError: Another process has begun to listen on the port in the meantime.
    """

    def __init__(
        self,
        app: Any,
        settings: Settings,
        lifecycle: Lifecycle,
        bound: socket.socket,
        *,
        name: str = "whet-serve",
        listens_later: bool = False,
    ) -> None:
        self._settings, self._lifecycle = settings, lifecycle
        super().__init__(HardenedServer(app, settings), bound, backlog=BACKLOG, name=name, listens_later=listens_later)

    @property
    def url(self) -> str:
        return http_url(self.host, self.port, is_tls=bool(self._settings.ssl_certfile))

    async def _serve(self, on_ready: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(self._ready, on_ready)
        await self._server.serve(sockets=[self._socket])

    def _ready(self, on_ready: Callable[[], None]) -> None:
        self._lifecycle.ready()
        on_ready()

    async def _finish(self) -> None:
        await self._lifecycle.drain(self._settings.shutdown_timeout_s)

    def _end_at_once(self) -> None:
        self._server.force_exit = self._server.should_exit = True
