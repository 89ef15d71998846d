"""Serve the files of the page, and the websocket over which frames go."""

from collections.abc import Awaitable, Callable

from whet.errors import MissingExtra
from whet.streamer.http.settings import PageSettings
from whet.streamer.http.viewers import Viewers
from whet.ui.charts import PAGE_HEADERS, TYPES, page_files

try:
    from fastapi import FastAPI, Request, Response, WebSocket
except ImportError as error:
    raise MissingExtra("fastapi", "stream", "the page of whet stream") from error

PATH = "/stream"
"""Where the websocket is."""

_HEADERS = PAGE_HEADERS | {"Permissions-Policy": "camera=(self), microphone=(), geolocation=()"}


def make_app(viewers: Viewers, settings: PageSettings) -> FastAPI:
    """Return the application. The page's files are read once, at the start, and no path outside them can be reached."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    content = page_files("whet.streamer")

    @app.middleware("http")
    async def check_host(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        if settings.allows_host(request.headers.get("host", "")):
            return await answer(request)
        return Response("this page answers to localhost only", 403, _HEADERS, "text/plain")

    def part(name: str) -> Response:
        if name not in content:
            return Response(f"the page has no part {name!r}", 404, _HEADERS, "text/plain")
        return Response(content[name], 200, _HEADERS, TYPES[name.rpartition(".")[2]])

    @app.get("/")
    async def index() -> Response:
        return part("index.html")

    @app.get("/static/{name}")
    async def static(name: str) -> Response:
        return part(name)

    @app.websocket(PATH)
    async def stream(socket: WebSocket) -> None:
        await viewers.serve(socket)

    return app
