"""Run the page's server: uvicorn on a socket, with an orderly end."""

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec

from whet.errors import MissingExtra
from whet.network import http_url, listen
from whet.streamer.http.app import make_app
from whet.streamer.http.session import Served
from whet.streamer.http.settings import PageSettings
from whet.streamer.http.viewers import Viewers
from whet.streamer.report import StreamReport

try:
    import uvicorn
except ImportError as error:
    raise MissingExtra("uvicorn", "stream", "the page of whet stream") from error
if find_spec("websockets") is None:  # uvicorn asks for it only when a page connects
    raise MissingExtra("websockets", "stream", "the page of whet stream")

_BACKLOG = 64
_START_S = 10.0
_END_S = 5.0  # how long the frame that is being computed may take at the end
_CLOSE_S = 2  # how long a page may take to read the last messages
_PING_S = 5.0  # after twice that, a page that the network has lost counts as gone
_MAX_MESSAGE = 8 * 2**20  # bytes; a connection with a longer message is closed before it is read whole
_MOST_CONNECTIONS = 64


class PageServer:
    """Serve the page on a bound socket.

    It serves in this thread (`run`), or in one of its own (`start`, `stop`). The model is called in a third thread, the
    same for all viewers.

    Args:
        served: The model.
        settings: Who may watch.
        bound: The socket.
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
        self.host, self.port = bound.getsockname()[:2]
        self._socket = bound
        self._model_thread = ThreadPoolExecutor(1, thread_name_prefix="whet-stream-model")
        self._served = served
        self._viewers = Viewers(served, settings, self._model_thread, on_report)
        config = uvicorn.Config(
            make_app(self._viewers, settings),
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="websockets-sansio",
            ws_max_size=_MAX_MESSAGE,
            ws_ping_interval=_PING_S,
            ws_ping_timeout=_PING_S,
            ws_per_message_deflate=False,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_graceful_shutdown=_CLOSE_S,
        )
        self._server = _Server(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        listen(bound, _BACKLOG)

    @property
    def url(self) -> str:
        """Return the page's address."""
        return http_url(self.host, self.port)

    def run(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """Serve until SIGTERM or Ctrl-C; a second signal ends the process at once. Call it in the main thread only.

        Args:
            on_ready: Called once the page can be opened.
        """
        asyncio.run(self._serve(on_ready, has_signals=True))

    def start(self) -> None:
        """Serve in a thread, and return once the page can be opened."""
        is_ready = threading.Event()

        def serve() -> None:
            asyncio.run(self._serve(is_ready.set, has_signals=False))

        self._thread = threading.Thread(target=serve, name="whet-stream-page", daemon=True)
        self._thread.start()
        is_ready.wait(_START_S)

    def stop(self) -> None:
        """End the stream that runs, then the server, and close the socket."""
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._end)
            self._thread.join()
        self._socket.close()

    async def _serve(self, on_ready: Callable[[], None], *, has_signals: bool) -> None:
        self._loop = loop = asyncio.get_running_loop()
        if has_signals:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._end)
        try:
            opened = self._served.opened
            await loop.run_in_executor(self._model_thread, opened.model.warm_up, opened.size)
            if self._ending is None:
                loop.call_soon(on_ready)
                await self._server.serve(sockets=[self._socket])
        finally:
            self._model_thread.shutdown(wait=False)

    def _end(self) -> None:
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._close())
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)

    async def _close(self) -> None:
        try:
            await asyncio.wait_for(self._viewers.end(), _END_S)
        except TimeoutError:
            pass
        finally:
            self._server.should_exit = True


class _Server(uvicorn.Server):
    """Run uvicorn without its signal handlers, by which the process would end with a signal instead of exit code 0."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
