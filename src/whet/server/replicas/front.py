"""Answer requests by replicas: the ASGI application of the proxy, behind the same checks as one server's."""

import asyncio
import json
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from whet.server.http.body import BODY
from whet.server.http.cors import with_origins
from whet.server.http.errors import ApiError, unavailable
from whet.server.http.leaving import unless_gone
from whet.server.http.lifecycle import Lifecycle
from whet.server.http.request_checks import KEY, RequestChecks
from whet.server.http.settings import Settings
from whet.server.replicas.fleet import Fleet
from whet.server.replicas.metrics import FleetMetrics
from whet.server.replicas.passing import Passing
from whet.server.replicas.routing import spot_of

_log = logging.getLogger("whet.server")

_LIVE_S = 5.0
_MEANS = frozenset(("kv_cache_usage", "speculation_gain"))  # figures of /live that are no sums
_SAME = frozenset(("max_model_len", "is_demo"))


def make_front(fleet: Fleet, settings: Settings, lifecycle: Lifecycle) -> ASGIApp:
    """Return the application. It takes requests once the lifecycle is ready."""
    front = Front(fleet, settings, lifecycle)
    return with_origins(RequestChecks(front, settings, lifecycle), settings.cors_origins)


class Front:
    """Answer what is about all replicas, and pass everything else on to one."""

    def __init__(self, fleet: Fleet, settings: Settings, lifecycle: Lifecycle) -> None:
        self._fleet, self._settings, self._lifecycle = fleet, settings, lifecycle
        self._metrics = FleetMetrics(fleet)
        self._started_s = time.monotonic()
        self._own = {
            "/health": self._health,
            "/v2/health/ready": self._ready,
            "/v2/health/live": self._alive,
            "/metrics": self._scrape,
            "/live": self._live,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        answer = self._own.get(scope["path"]) if scope["method"] == "GET" else None
        try:
            if answer is None:
                await self._pass_on(scope, receive, send)
            else:
                await (await answer(Headers(scope=scope)))(scope, receive, send)
        except ApiError as error:
            await error.response(scope["path"])(scope, receive, send)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and end it if the client leaves or the server ends.

        Raises:
            ApiError: It cannot be answered, and nothing has been sent yet.
        """
        body = await _content(receive)
        path, query = scope["raw_path"].decode("ascii"), scope["query_string"].decode("ascii")
        passing = Passing(
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
        work = asyncio.ensure_future(passing.run())
        is_cut = False

        def cut() -> None:
            nonlocal is_cut
            is_cut = True
            work.cancel()

        self._lifecycle.started(cut)
        try:
            await unless_gone(receive, work)
        except asyncio.CancelledError:
            this = asyncio.current_task()
            if not is_cut or (this is not None and this.cancelling()):
                raise
            error = unavailable("the server is shutting down, and this request took too long; send it again later")
            if not passing.has_begun:
                raise error from None
            await passing.fail(error)
        except ApiError:
            raise
        except Exception as error:
            if passing.has_begun:
                raise
            _log.error("%s %s failed in the proxy", scope["method"], scope["path"], exc_info=error)
            raise ApiError(500, "the server failed on this request; its log says where") from error
        finally:
            self._lifecycle.ended(cut)

    def _check_taking(self) -> None:
        """Raise ApiError (503) while the replicas are being loaded, or none takes requests."""
        self._lifecycle.check_ready()
        if not self._fleet.taking:
            raise unavailable("no replica of the model is running just now; send this request again later")

    async def _health(self, _: Headers) -> Response:
        self._check_taking()
        ready = len(self._fleet.taking)
        return _json({"status": "ok", "replicas": self._fleet.num_replicas, "replicas_ready": ready})

    async def _ready(self, _: Headers) -> Response:
        self._check_taking()
        return _json({"ready": True})

    async def _alive(self, _: Headers) -> Response:
        return _json({"live": True})

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
        return _json(whole)


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


async def _content(receive: Receive) -> bytes:
    """Return all of a request's body.

    Raises:
        ApiError: The client leaves, or sends too much or too slowly.
    """
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ApiError(400, "the client left before its request had arrived completely")
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


def _json(content: object) -> Response:
    return Response(json.dumps(content, ensure_ascii=False), media_type="application/json")
