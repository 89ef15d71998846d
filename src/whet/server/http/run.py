"""Run the server: uvicorn on a socket, with an orderly shutdown."""

import asyncio
import socket
import sys
from collections.abc import Callable

from whet.server.compiling import COMPILERS
from whet.server.engine import Engine
from whet.server.http.app import make_app
from whet.server.http.hardened import WebServer
from whet.server.http.lifecycle import Lifecycle
from whet.server.http.models import Models
from whet.server.http.settings import Settings
from whet.server.rendering import RENDERERS

_CHILDREN_S = 1.0  # how long a schema that compiles and a template that renders may still take at the end
SWITCH_S = 0.0002  # how long a thread may keep Python's lock while another one wants it; Python's default is 5 ms


class HttpServer(WebServer):
    """Serve an engine, or several models, on a bound socket. At the end, requests that run are answered.

    Raises:
        OptionError: Another process has begun to listen on the port in the meantime.
    """

    def __init__(self, served: Engine | Models, settings: Settings, bound: socket.socket) -> None:
        self._is_alone = False  # whether the process serves nothing else
        lifecycle = Lifecycle()
        app = make_app(served, settings, lifecycle)
        self._intake = app.state.intake
        super().__init__(app, settings, lifecycle, bound)

    def run(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """Serve until SIGTERM or Ctrl-C, then drain. A second signal ends the server at once.

        Call it in the main thread only. It shortens the time for which a thread of this process may keep Python's lock.
        A step of the engine releases the lock dozens of times; with Python's default, it could wait 5 ms each time
        while a large answer is written.
        """
        sys.setswitchinterval(SWITCH_S)
        self._is_alone = True
        super().run(on_ready)

    async def _serve(self, on_ready: Callable[[], None]) -> None:
        try:
            await super()._serve(on_ready)
        finally:
            await self._intake.close()

    async def _finish(self) -> None:
        if self._is_alone:
            loop = asyncio.get_running_loop()
            for children in (COMPILERS, RENDERERS):  # what they do takes milliseconds, or goes on for long
                loop.call_later(_CHILDREN_S, children.end)
        await super()._finish()
