"""Check each request before its route: the host, the API key, the size, and whether the server takes requests."""

from collections.abc import MutableMapping
from contextlib import nullcontext
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from whet.server.http.body import BODY, Bodies, Body
from whet.server.http.errors import ApiError
from whet.server.http.lifecycle import Lifecycle
from whet.server.http.settings import Settings
from whet.ui.network import is_key, names_loopback

_KEPT = (
    "/v1",
    "/v2/models",
    "/rerank",
    "/tokenize",
    "/detokenize",
    "/live",
)  # paths that need a key, if the server has keys
KEY = "whet.key"  # the name of the key in a request's ASGI scope


class RequestChecks:
    """Check requests, as ASGI middleware, before any of their body is read."""

    def __init__(self, app: ASGIApp, settings: Settings, lifecycle: Lifecycle) -> None:
        self._app = app
        self._settings = settings
        self._lifecycle = lifecycle
        self._bodies = Bodies(settings.max_pending_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = Body(
            Headers(scope=scope),
            receive,
            send,
            most_bytes=self._settings.max_body_bytes,
            timeout_s=self._settings.body_timeout_s,
            bodies=self._bodies,
        )
        scope[BODY] = body
        self._lifecycle.started(body.cut)
        try:
            await self._answer(scope, body)
        finally:
            body.release()
            self._lifecycle.ended(body.cut)

    async def _answer(self, scope: Scope, body: Body) -> None:
        headers, is_work = Headers(scope=scope), scope["method"] == "POST"
        try:
            self._check_host(headers)
            self._check_key(scope, headers)
            if is_work:
                self._lifecycle.check_ready()
            body.check_length()
        except ApiError as error:
            await error.response(scope["path"])(scope, body.receive, body.send)
            return
        with self._lifecycle.open() if is_work else nullcontext():
            await self._app(scope, body.receive, body.send)

    def _check_host(self, headers: Headers) -> None:
        is_open = not self._settings.is_local or self._settings.api_keys  # a foreign web site does not know the key
        if not is_open and not names_loopback(headers.get("host", "")):
            message = "this server answers to localhost only; behind a proxy, start it with --api-key"
            raise ApiError(421, message, code="wrong_host")

    def _check_key(self, scope: MutableMapping[str, Any], headers: Headers) -> None:
        if not self._settings.api_keys:
            return
        path = scope["path"]
        if not any(path == kept or path.startswith(f"{kept}/") for kept in _KEPT):
            return
        scheme, _, key = headers.get("authorization", "").partition(" ")
        key = key.strip()
        if scheme.lower() != "bearer" or not is_key(key, self._settings.api_keys):
            message = "wrong API key" if key else "this server needs an API key: Authorization: Bearer KEY"
            raise ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
        scope[KEY] = key
