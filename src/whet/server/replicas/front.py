"""Answer requests by replicas: the ASGI application of the proxy, behind the same checks as one server's."""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Scope, Send

from whet.server.http.body import BODY
from whet.server.http.errors import ApiError
from whet.server.http.lifecycle import Lifecycle
from whet.server.http.proxy import Own, Proxy, with_checks
from whet.server.http.request_checks import KEY
from whet.server.http.settings import Settings
from whet.server.replicas.fleet import Fleet, none_runs
from whet.server.replicas.metrics import FleetMetrics
from whet.server.replicas.passing import Passing
from whet.server.replicas.routing import spot_of

_LIVE_S = 5.0
_MEANS = frozenset(("kv_cache_usage", "speculation_gain"))  # figures of /live that are no sums
_SAME = frozenset(("max_model_len", "is_demo"))


def make_front(fleet: Fleet, settings: Settings, lifecycle: Lifecycle) -> ASGIApp:
    """Return the application. It takes requests once the lifecycle is ready."""
    return with_checks(Front(fleet, lifecycle), settings, lifecycle)


class Front(Proxy):
    """Answer what is about all replicas, and pass everything else on to one."""

    def __init__(self, fleet: Fleet, lifecycle: Lifecycle) -> None:
        own: dict[str, Own] = {
            "/health": self._health,
            "/v2/health/ready": self._ready,
            "/v2/health/live": self._alive,
            "/metrics": self._scrape,
            "/live": self._live,
        }
        super().__init__(lifecycle, own)
        self._fleet = fleet
        self._metrics = FleetMetrics(fleet)
        self._started_s = time.monotonic()

    def _passed(self, scope: Scope, body: bytes, send: Send) -> Passing:
        path, query = scope["raw_path"].decode("ascii"), scope["query_string"].decode("ascii")
        return Passing(
            fleet=self._fleet,
            method=scope["method"],
            path=scope["path"],
            target=f"{path}?{query}" if query else path,
            headers=scope["headers"],
            body=body,
            spot=spot_of(scope["path"], scope.get(KEY, ""), body),
            send=send,
            release=scope[BODY].release,
        )

    def _check_taking(self) -> None:
        """Raise ApiError (503) while the replicas are being loaded, or none takes requests."""
        self._lifecycle.check_ready()
        if not self._fleet.taking:
            raise none_runs()

    async def _health(self, _: Headers) -> Response:
        self._check_taking()
        ready = len(self._fleet.taking)
        return JSONResponse({"status": "ok", "replicas": self._fleet.num_replicas, "replicas_ready": ready})

    async def _ready(self, _: Headers) -> Response:
        self._check_taking()
        return JSONResponse({"ready": True})

    async def _alive(self, _: Headers) -> Response:
        return JSONResponse({"live": True})

    async def _scrape(self, headers: Headers) -> Response:
        content, content_type = await self._metrics.scrape(headers.get("accept", ""))
        return Response(content, headers={"Content-Type": content_type})

    async def _live(self, headers: Headers) -> Response:
        given = [(b"authorization", headers["authorization"].encode("latin-1"))] if "authorization" in headers else []
        asked = [one.get("/live", given, timeout_s=_LIVE_S) for one in self._fleet.taking]
        pages = [json.loads(page) for page in await asyncio.gather(*asked) if page is not None]
        if not pages:
            raise ApiError(404, "there is no language model here, and these are figures of one")
        whole = {**summed(pages), "uptime_s": time.monotonic() - self._started_s, "phase": self._lifecycle.phase}
        return JSONResponse(whole)


def summed(pages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures of several engines as those of one: sums, and means of what has none."""
    found: dict[str, Any] = {}
    for name, first in pages[0].items():
        values = [page[name] for page in pages if page.get(name) is not None]
        if isinstance(first, Mapping):
            found[name] = summed(values)
        elif not values or isinstance(first, str | bool) or name in _SAME:
            found[name] = first
        else:
            found[name] = sum(values) / (len(values) if name in _MEANS else 1)
    return found
