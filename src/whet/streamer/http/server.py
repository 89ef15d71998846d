"""Run the page's server: uvicorn on a socket, with an orderly end."""

import asyncio
import signal
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec

from whet.errors import MissingExtra
from whet.streamer.http.app import make_app
from whet.streamer.http.session import Served
from whet.streamer.http.settings import PageSettings
from whet.streamer.http.viewers import Viewers
from whet.streamer.report import StreamReport
from whet.ui.network import http_url

try:
    from whet.ui.asgi_server import AsgiServer, UvicornWithoutSignals, uvicorn_config
except ImportError as error:
    raise MissingExtra("uvicorn", "stream", "the page of whet stream") from error

if find_spec("websockets") is None:  # uvicorn asks for it only when a page connects
    raise MissingExtra("websockets", "stream", "the page of whet stream")

_BACKLOG = 64
_END_S = 5.0  # how long the frame that is being computed may take at the end
_CLOSE_S = 2  # how long a page may take to read the last messages
_PING_S = 5.0  # after twice that, a page that the network has lost counts as gone
_MAX_MESSAGE = 8 * 2**20  # bytes; a connection with a longer message is closed before it is read whole
_MOST_CONNECTIONS = 64


class PageServer(AsgiServer):
    """Serve the page on a bound socket.

    The model is called in a thread of its own, the same for all viewers. A second signal ends the process, since a
    frame that is being computed cannot be interrupted.

    Args:
        on_report: Called with the report of each viewer's stream that had frames.

    Raises:
        OptionError: Another process has begun to listen on the port in the meantime.
    """

    def __init__(
        self,
        served: Served,
        settings: PageSettings,
        bound: socket.socket,
        on_report: Callable[[StreamReport], None] = lambda report: None,
    ) -> None:
        self._model_thread = ThreadPoolExecutor(1, thread_name_prefix="whet-stream-model")
        self._served = served
        self._viewers = Viewers(served, settings, self._model_thread, on_report)
        config = uvicorn_config(
            make_app(self._viewers, settings),
            ws="websockets-sansio",
            ws_max_size=_MAX_MESSAGE,
            ws_ping_interval=_PING_S,
            ws_ping_timeout=_PING_S,
            ws_per_message_deflate=False,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_graceful_shutdown=_CLOSE_S,
        )
        super().__init__(UvicornWithoutSignals(config), bound, backlog=_BACKLOG, name="whet-stream-page")

    @property
    def url(self) -> str:
        return http_url(self.host, self.port)

    async def _serve(self, on_ready: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        try:
            opened = self._served.opened
            await loop.run_in_executor(self._model_thread, opened.model.warm_up, opened.size)
            if self._ending is None:
                loop.call_soon(on_ready)
                await self._server.serve(sockets=[self._socket])
        finally:
            self._model_thread.shutdown(wait=False)

    async def _finish(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._viewers.end(), _END_S)

    def _end_at_once(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)
