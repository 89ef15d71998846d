"""Serve the page, its data and /metrics over HTTP, from a thread of the process that watches."""

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable

import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request, Response

from whet.scripts.monitor import metrics
from whet.scripts.monitor.exporter import Exporter
from whet.scripts.monitor.run import Run
from whet.scripts.monitor.summary import summarise
from whet.scripts.monitor.summary_page import render
from whet.ui.asgi_server import AsgiServer, UvicornWithoutSignals, uvicorn_config
from whet.ui.charts import PAGE_HEADERS, TYPES, page_files
from whet.ui.network import LOOPBACK, bind, http_url, is_loopback, names_loopback

_WAIT_S = 15.0  # a page asks again after that, so that each side notices when the other has gone
_BACKLOG = 64
_NO_CACHE = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}


class PageServer(AsgiServer):
    """Serve the page of one run. Call `start` after making it. The port 0 takes any free one.

    Raises:
        OptionError: The address cannot be bound.
    """

    def __init__(self, run: Run, host: str = LOOPBACK, port: int = 0) -> None:
        self._waiting = _PageWaiters(run)
        app = _app(run, self._waiting, loopback=is_loopback(host))
        self._quiet = _QuietUvicorn(uvicorn_config(app, ws="none", date_header=False, timeout_graceful_shutdown=2))
        super().__init__(self._quiet, bind(host, port), backlog=_BACKLOG, name="whet-monitor-page")

    @property
    def url(self) -> str:
        return http_url(self.host, self.port)

    async def _serve(self, on_ready: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(on_ready)
        await self._quiet.serve(sockets=[self._socket])

    def stop(self) -> None:
        """Tell open pages of the end, then stop. If nothing was started, only release the port."""
        self._waiting.notify_pages()
        super().stop()

    async def _finish(self) -> None:
        self._waiting.stop()
        self._quiet.ended.set()

    def _end_at_once(self) -> None:
        self._quiet.force_exit = True


class _QuietUvicorn(UvicornWithoutSignals):
    """Wait for the end without looking for it: uvicorn's own loop looks ten times a second, beside what is watched."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ended = asyncio.Event()

    async def main_loop(self) -> None:
        await self.ended.wait()


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


def _app(run: Run, waiting: _PageWaiters, *, loopback: bool) -> FastAPI:
    exporter = Exporter(run)

    def check_host(request: Request) -> None:
        if loopback and not names_loopback(request.headers.get("host", "")):
            raise HTTPException(421, "this page answers to localhost only")

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, dependencies=[Depends(check_host)])

    content = page_files(str(__package__))

    @app.get("/page/{name}")
    async def part(name: str) -> Response:
        if name not in content:
            raise HTTPException(404)
        return Response(content[name], media_type=TYPES[name.rpartition(".")[2]], headers=PAGE_HEADERS)

    @app.get("/")
    async def page() -> Response:
        return await part("live.html")

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
