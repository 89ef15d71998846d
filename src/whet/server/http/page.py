"""Serve the page in a browser: its files, and the figures that it fetches every second."""

import time
from typing import Any

from fastapi import APIRouter, Response

from whet.server.http.errors import ApiError
from whet.server.http.service import Service
from whet.ui.charts import PAGE_HEADERS, TYPES, page_files

_FIRST = "index.html"


def page_routes() -> APIRouter:
    """Return the routes of the page's files, which are read once, at the start. No path outside them can be reached."""
    router = APIRouter(include_in_schema=False)
    content = page_files("whet.server")

    def part(name: str) -> Response:
        if name not in content:
            raise ApiError(404, f"the page has no part {name!r}")
        return Response(content[name], media_type=TYPES[name.rpartition(".")[2]], headers=PAGE_HEADERS)

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
        "is_demo": engine.is_demo,
        "uptime_s": time.monotonic() - service.started_s,
        "max_model_len": engine.max_model_len,
        "max_num_seqs": engine.options.max_num_seqs,
        "max_waiting": engine.options.max_waiting,
        "phase": service.lifecycle.phase,
    }
