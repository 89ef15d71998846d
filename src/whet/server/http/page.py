"""Serve the page in a browser: its files, and the figures that it fetches every second."""

import time
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, Response

from whet import charts, look
from whet.server.http.errors import ApiError
from whet.server.http.service import Service

_TYPES = {"css": "text/css", "js": "text/javascript", "html": "text/html", "svg": "image/svg+xml"}
_POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:"
_NO_MARKUP = "require-trusted-types-for 'script'; trusted-types 'none'"  # no text is read as HTML
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": f"{_POLICY}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; {_NO_MARKUP}",
}
_FIRST = "index.html"


def page_routes() -> APIRouter:
    """Return the routes of the page. They serve the files of its folder, the chart scripts and the shared style.

    The files are read once, at the start. No path outside them can be reached.
    """
    router = APIRouter(include_in_schema=False)
    shared = {name: room.read(name).encode() for room in (charts, look) for name in room.FILES}
    content = shared | {
        entry.name: entry.read_bytes()
        for entry in (files("whet.server") / "page").iterdir()
        if entry.is_file() and entry.name.rpartition(".")[2] in _TYPES
    }

    def part(name: str) -> Response:
        if name not in content:
            raise ApiError(404, f"the page has no part {name!r}")
        return Response(content[name], media_type=_TYPES[name.rpartition(".")[2]], headers=_HEADERS)

    @router.get("/")
    async def index() -> Response:
        return part(_FIRST)

    @router.get("/static/{name}")
    async def static(name: str) -> Response:
        return part(name)

    return router


def facts(service: Service) -> dict[str, Any]:
    """Return the facts about the server that the page shows beside the engine's figures."""
    model = service.engines[0]
    engine = model.engine
    return {
        "model": model.model_name,
        "uptime_s": time.monotonic() - service.started_s,
        "max_model_len": engine.max_model_len,
        "max_num_seqs": engine.options.max_num_seqs,
        "max_waiting": engine.options.max_waiting,
        "phase": service.lifecycle.phase,
    }
