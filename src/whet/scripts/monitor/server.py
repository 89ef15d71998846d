"""Serve the page, its data and /metrics over HTTP, from a thread of the process that watches."""

import asyncio
import contextlib
import json
import threading
import time
from importlib.resources import files
from typing import Any

from whet.errors import MissingExtra
from whet.scripts.monitor import metrics
from whet.scripts.monitor.exporter import Exporter
from whet.scripts.monitor.run import Run
from whet.scripts.monitor.summary import summarise
from whet.scripts.monitor.summary_page import render
from whet.ui import charts, page_style
from whet.ui.network import LOOPBACK, bind, http_url, is_loopback, listen, names_loopback

_WAIT_S = 15.0  # a page asks again after that, so that each side notices when the other has gone
_START_S = 10.0
_BACKLOG = 64
_TYPES = {"css": "text/css", "js": "text/javascript", "html": "text/html"}
_STATIC = ("style.css", "format.js", "chart.js", "charts.js", "tiles.js", "live.js", *charts.FILES, *page_style.FILES)
_POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:"
_NO_CACHE = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
_PAGE_HEADERS = {**_NO_CACHE, "Content-Security-Policy": _POLICY}


class PageServer:
    """Serve the page of one run. Call `start` after making it.

    Args:
        run: The run.
        host: The address to bind.
        port: The port; 0 takes any free one.

    Raises:
        MissingExtra: fastapi, uvicorn or prometheus-client is not installed.
        OptionError: The address cannot be bound.
    """

    def __init__(self, run: Run, host: str = LOOPBACK, port: int = 0) -> None:
        self._waiting = _PageWaiters(run)
        app = _app(run, self._waiting, loopback=is_loopback(host))
        self._server = _uvicorn(app)
        self._socket = bind(host, port)
        listen(self._socket, _BACKLOG)
        self.host, self.port = host, int(self._socket.getsockname()[1])
        self._thread = threading.Thread(target=self._serve, name="whet-monitor-page", daemon=True)

    @property
    def url(self) -> str:
        """Return the page's address."""
        return http_url(self.host, self.port)

    def start(self) -> None:
        """Start the thread, and return once the page can be requested."""
        self._thread.start()
        deadline = time.monotonic() + _START_S
        while not self._server.started and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.005)

    def stop(self) -> None:
        """Tell open pages of the end, then stop. If nothing was started, only release the port."""
        if self._thread.ident is None:
            self._socket.close()
            return
        self._waiting.notify_pages()
        self._waiting.stop()
        self._server.end()
        self._thread.join(timeout=_START_S)
        self._socket.close()

    def _serve(self) -> None:
        self._server.run(sockets=[self._socket])


class _PageWaiters:
    """Hold the requests that wait for news, and whether a page knows of the end."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._loop: asyncio.AbstractEventLoop | None = None
        self._events: set[asyncio.Event] = set()
        self._asked = -float("inf")
        self._is_stopped = False
        self._notified = threading.Event()
        run.listen(self._notify)

    async def news(self, after: int) -> None:
        """Wait until there is a row beyond `after`, or the run has ended."""
        self._loop = asyncio.get_running_loop()
        self._asked = time.monotonic()
        event = asyncio.Event()
        self._events.add(event)
        try:
            if self._run.num_rows <= after and self._run.ending is None and not self._is_stopped:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(event.wait(), _WAIT_S)
        finally:
            self._events.discard(event)
            self._asked = time.monotonic()
        if self._run.ending is not None:
            self._notified.set()

    def notify_pages(self) -> None:
        """Wait a moment for a page that is between two requests. Return at once if no page is open."""
        if self._run.ending is not None and (self._events or time.monotonic() - self._asked < 2.0):
            self._notified.wait(timeout=1.5)

    def stop(self) -> None:
        """Wake all requests that wait, because the server ends."""
        self._is_stopped = True
        self._notify()

    def _notify(self) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the server has stopped
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for event in self._events:
            event.set()


def _uvicorn(app: Any) -> Any:
    try:
        import uvicorn
    except ImportError as error:
        raise MissingExtra("uvicorn", "monitor", "the page of whet monitor") from error

    class Server(uvicorn.Server):
        """Serve until `end` is called.

        uvicorn's own loop checks its flags ten times a second, which takes time from the watched process.
        """

        _loop: asyncio.AbstractEventLoop | None = None

        async def main_loop(self) -> None:
            self._ended = asyncio.Event()
            self._loop = asyncio.get_running_loop()
            if not self.should_exit:
                await self._ended.wait()

        def end(self) -> None:
            self.should_exit = True
            if self._loop is not None:
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    self._loop.call_soon_threadsafe(self._ended.set)

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        date_header=False,
        timeout_graceful_shutdown=2,
    )
    return Server(config)


def _app(run: Run, waiting: _PageWaiters, *, loopback: bool) -> Any:
    try:
        from fastapi import Depends, FastAPI, HTTPException, Request, Response
    except ImportError as error:
        raise MissingExtra("fastapi", "monitor", "the page of whet monitor") from error
    exporter = Exporter(run)

    def check_host(request: Request) -> None:
        if loopback and not names_loopback(request.headers.get("host", "")):
            raise HTTPException(421, "this page answers to localhost only")

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, dependencies=[Depends(check_host)])

    async def static(name: str) -> Response:
        shared = next((room for room in (charts, page_style) if name in room.FILES), None)
        content = shared.read(name) if shared else (files(__package__) / "page" / name).read_text(encoding="utf-8")
        return Response(content, media_type=_TYPES[name.rpartition(".")[2]], headers=_PAGE_HEADERS)

    @app.get("/")
    async def page() -> Response:
        return await static("live.html")

    @app.get("/page/{name}")
    async def part(name: str) -> Response:
        if name not in _STATIC:
            raise HTTPException(404)
        return await static(name)

    def data(value: object) -> Response:
        # FastAPI's own encoder would look at every number in Python, which takes time from the watched process.
        return Response(json.dumps(value), media_type="application/json", headers=_NO_CACHE)

    @app.get("/api/charts")
    async def what_charts() -> Response:
        return data(metrics.charts())

    @app.get("/api/update")
    async def update(after: int = 0, of: str = "") -> Response:
        after = max(after, 0) if of == run.id else 0
        await waiting.news(after)
        return data(run.update(after))

    @app.get("/api/history")
    async def history() -> Response:
        return data(run.history())

    @app.get("/summary.json")
    async def summary() -> Response:
        return Response(summarise(run).to_json(), media_type="application/json", headers=_NO_CACHE)

    @app.get("/summary.html")
    async def summary_page() -> Response:
        return Response(render(run), media_type="text/html", headers=_NO_CACHE)

    @app.get("/metrics")
    async def scrape(request: Request) -> Response:
        content, content_type = exporter.scrape(request.headers.get("accept", ""))
        return Response(content, headers={"Content-Type": content_type})

    return app
