"""Answer HTTP requests by asking replicas: the application of the server that stands before Ray's replicas.

A request whose replica died is asked of another one, as long as nothing of its answer has been sent.
"""

import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

from fastapi import FastAPI
from prometheus_client import CollectorRegistry, Counter, generate_latest
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from whet.server.http.cors import allow_origins
from whet.server.http.errors import ApiError, failed, install_handlers, unavailable
from whet.server.http.leaving import unless_gone
from whet.server.http.lifecycle import Lifecycle
from whet.server.http.request_checks import KEY, RequestChecks
from whet.server.http.settings import Settings
from whet.server.ray_serve.exchange import head_of
from whet.server.ray_serve.keys import Keys
from whet.server.replicas.metrics import joined, registry_of

_TRIES = 3  # a request that ended so many replicas is the reason for it, and gets no more of them
_SESSION = "x-session-id"  # a client may choose itself which of its requests belong together
_EVENTS = "text/event-stream"
_METRICS = "text/plain; version=0.0.4; charset=utf-8"

_log = logging.getLogger("whet.server")


class ReplicaLost(Exception):
    """The replica that was asked has died, or cannot be reached."""


@dataclass(frozen=True)
class Call:
    """Hold one request for a replica.

    Attributes:
        head: The request's ASGI scope, as `exchange` takes it.
        key: Requests with equal keys go to the same replica if they can; "" has none.
    """

    head: dict[str, Any]
    body: bytes = field(repr=False)
    key: str = ""


class Replicas(Protocol):
    """Ask replicas, wherever they are."""

    def ask(self, call: Call) -> AsyncGenerator[list[Message], None]:
        """Yield the ASGI messages of one replica's answer. Closing the generator early cancels the request.

        Raises:
            ReplicaLost: The replica died.
            ApiError: No replica takes the request.
        """

    async def metrics(self) -> dict[str, str]:
        """Return what each replica that answers says on /metrics, by the replica's name."""


class Front:
    """Pass requests on to replicas, and their answers back, as an ASGI application.

    It answers /health and /metrics itself, for all replicas.
    """

    def __init__(self, replicas: Replicas, settings: Settings, lifecycle: Lifecycle) -> None:
        self._replicas, self._settings, self._lifecycle = replicas, settings, lifecycle
        self._keys = Keys()
        self._own: dict[str, Callable[[], Awaitable[tuple[bytes, str]]]] = {
            "/health": self._health,
            "/metrics": self._metrics,
        }
        self._registry = CollectorRegistry(auto_describe=False)
        self._asked = self._counter("requests", "Requests that were passed on to replicas")
        self._again = self._counter("retries", "Requests that were asked again, since their replica died")
        self._cut = self._counter("cut_answers", "Answers that ended early, since their replica died meanwhile")

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"whet:ray_{name}", text, registry=self._registry)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["method"] == "GET" and (own := self._own.get(scope["path"])) is not None:
                await _send_whole(send, *await own())
                return
            call = self._call(scope, await _body(receive))
            await unless_gone(receive, self._answer(call, send))
        except ApiError as error:
            await error.response(scope["path"])(scope, receive, send)

    def _call(self, scope: Scope, body: bytes) -> Call:
        head, salt = head_of(scope), ""
        if key := scope.get(KEY, ""):
            # Replicas learn no API keys: they tell the clients' cached prompts apart by a digest.
            salt = head[KEY] = self._settings.cache_salt(key, None)
            head["headers"] = [pair for pair in head["headers"] if pair[0] != b"authorization"]
        session = Headers(scope=scope).get(_SESSION, "")
        return Call(head, body, f"{salt}{session}" if session else self._keys.key(body, salt))

    async def _answer(self, call: Call, send: Send) -> None:
        """Ask replicas until one has answered. The head of an answer is held back until some of its body is there."""
        self._asked.inc()
        lost: ReplicaLost | None = None
        for attempt in range(_TRIES):
            if attempt:
                self._again.inc()
            answer = _Answer(send)
            try:
                async with aclosing(self._replicas.ask(call)) as batches:
                    async for batch in batches:
                        await answer.add(batch)
                return
            except ReplicaLost as error:
                lost = error
                if answer.is_begun:
                    await self._cut_short(answer, failed("the replica that wrote this died; send the request again"))
                    return
            except ApiError as error:
                if not answer.is_begun:
                    raise
                await self._cut_short(answer, error)
                return
        _log.error("%s %s: %d replicas died", call.head["method"], call.head["path"], _TRIES, exc_info=lost)
        raise failed(f"{_TRIES} replicas died while they worked on this request; it is not tried again")

    async def _cut_short(self, answer: "_Answer", error: ApiError) -> None:
        self._cut.inc()
        await answer.end_early(error)

    async def _health(self) -> tuple[bytes, str]:
        self._lifecycle.check_ready()
        found = await self._replicas.metrics()
        if not found:
            raise unavailable("no replica answers just now; send this request again later")
        return json.dumps({"status": "ok", "replicas": len(found)}).encode(), "application/json"

    async def _metrics(self) -> tuple[bytes, str]:
        texts = await self._replicas.metrics()
        return generate_latest(self._registry) + generate_latest(registry_of(joined(texts))), _METRICS


def front_app(replicas: Replicas, settings: Settings, lifecycle: Lifecycle) -> FastAPI:
    """Build the application of the server before the replicas. It checks requests as a server without replicas does."""
    app = FastAPI(title="whet serve", openapi_url=None, docs_url=None, redoc_url=None)
    app.router.default = Front(replicas, settings, lifecycle)  # there are no routes: all paths come here
    install_handlers(app)
    app.add_middleware(RequestChecks, settings=settings, lifecycle=lifecycle)
    allow_origins(app, settings.cors_origins)
    return app


async def _body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    is_left = True
    while is_left:
        message = await receive()
        parts.append(message.get("body", b""))
        is_left = bool(message.get("more_body"))
    return b"".join(parts)


async def _send_whole(send: Send, content: bytes, kind: str) -> None:
    headers: Sequence[tuple[bytes, bytes]] = [
        (b"content-type", kind.encode()),
        (b"content-length", str(len(content)).encode()),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": content})


class _Answer:
    """Send one answer, whose head is held back until some of its body is there."""

    def __init__(self, send: Send) -> None:
        self.is_begun = False
        self._send = send
        self._held: list[Message] = []
        self._is_events = False

    async def add(self, messages: Sequence[Message]) -> None:
        """Take the next messages of a replica's answer."""
        self._held += messages
        self.is_begun = self.is_begun or any(message["type"] == "http.response.body" for message in messages)
        while self.is_begun and self._held:
            message = self._held.pop(0)
            if message["type"] == "http.response.start":
                self._is_events = Headers(raw=message["headers"]).get("content-type", "").startswith(_EVENTS)
            await self._send(message)

    async def end_early(self, error: ApiError) -> None:
        """End a stream of events with an error event, as an engine's failure ends it.

        Another answer is left unfinished: the server then closes the connection, which is how a client learns of it.
        """
        if not self._is_events:
            return
        for event in (json.dumps(error.content()).encode(), b"[DONE]"):
            await self._send({"type": "http.response.body", "body": b"data: " + event + b"\n\n", "more_body": True})
        await self._send({"type": "http.response.body", "body": b""})
