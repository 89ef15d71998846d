"""Answer HTTP requests by asking replicas: the application of the server that stands before Ray's replicas.

A request whose replica died is asked of another one, as long as nothing of its answer has been sent.
"""

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Scope, Send

from whet.server.http.errors import ApiError, failed, unavailable
from whet.server.http.events import EVENTS
from whet.server.http.exposition import encoded, joined, registry_of
from whet.server.http.lifecycle import Lifecycle
from whet.server.http.proxy import PassedRequest, Proxy, with_checks
from whet.server.http.request_checks import KEY
from whet.server.http.settings import Settings
from whet.server.ray_serve.exchange import head_of
from whet.server.ray_serve.keys import Keys

_TRIES = 3  # a request that ended so many replicas is the reason for it, and gets no more of them
_SESSION = "x-session-id"  # a client may choose itself which of its requests belong together

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


class Counts:
    """Count what the server before the replicas does, for /metrics."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.asked = self._counter("requests", "Requests that were passed on to replicas")
        self.again = self._counter("retries", "Requests that were asked again, since their replica died")
        self.cut = self._counter("cut_answers", "Answers that ended early, since their replica died meanwhile")

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"whet:ray_{name}", text, registry=self.registry)


class Front(Proxy):
    """Pass requests on to replicas, and their answers back. It answers /health and /metrics itself, for all of them."""

    def __init__(self, replicas: Replicas, settings: Settings, lifecycle: Lifecycle) -> None:
        super().__init__(lifecycle, {"/health": self._health, "/metrics": self._metrics})
        self._replicas, self._settings = replicas, settings
        self._keys = Keys()
        self._counts = Counts()

    def _passed(self, scope: Scope, body: bytes, send: Send) -> "_Passing":
        head, salt = head_of(scope), ""
        if key := scope.get(KEY, ""):
            # Replicas learn no API keys: they tell the clients' cached prompts apart by a digest.
            salt = head[KEY] = self._settings.cache_salt(key, None)
            head["headers"] = [pair for pair in head["headers"] if pair[0] != b"authorization"]
        session = Headers(scope=scope).get(_SESSION, "")
        call = Call(head, body, f"{salt}{session}" if session else self._keys.key(body, salt))
        return _Passing(send=send, replicas=self._replicas, call=call, counts=self._counts)

    async def _health(self, _: Headers) -> Response:
        self._lifecycle.check_ready()
        found = await self._replicas.metrics()
        if not found:
            raise unavailable("no replica answers just now; send this request again later")
        return JSONResponse({"status": "ok", "replicas": len(found)})

    async def _metrics(self, headers: Headers) -> Response:
        of_replicas = joined(await self._replicas.metrics())
        registry = registry_of([*self._counts.registry.collect(), *of_replicas])
        content, content_type = encoded(registry, headers.get("accept", ""))
        return Response(content, headers={"Content-Type": content_type})


def front_app(replicas: Replicas, settings: Settings, lifecycle: Lifecycle) -> ASGIApp:
    """Return the application of the server before the replicas."""
    return with_checks(Front(replicas, settings, lifecycle), settings, lifecycle)


@dataclass(kw_only=True)
class _Passing(PassedRequest):
    """Pass one request on to replicas, whose answer's head is held back until some of its body is there."""

    replicas: Replicas
    call: Call
    counts: Counts
    _held: list[Message] = field(default_factory=list)

    async def run(self) -> None:
        """Ask replicas until one has answered.

        Raises:
            ApiError: So many replicas died of it, or none takes it.
        """
        self.counts.asked.inc()
        lost: ReplicaLost | None = None
        for attempt in range(_TRIES):
            if attempt:
                self.counts.again.inc()
            self._held.clear()
            try:
                async with aclosing(self.replicas.ask(self.call)) as batches:
                    async for batch in batches:
                        await self._add(batch)
                return
            except ReplicaLost as error:
                lost = error
                if self.has_begun:
                    await self._cut_short(failed("the replica that wrote this died; send the request again"))
                    return
            except ApiError as error:
                if not self.has_begun:
                    raise
                await self._cut_short(error)
                return
        method, path = self.call.head["method"], self.call.head["path"]
        _log.error("%s %s: %d replicas died", method, path, _TRIES, exc_info=lost)
        raise failed(f"{_TRIES} replicas died while they worked on this request; it is not tried again")

    async def _add(self, messages: Sequence[Message]) -> None:
        """Take the next messages of a replica's answer."""
        self._held += messages
        self.has_begun = self.has_begun or any(message["type"] == "http.response.body" for message in messages)
        while self.has_begun and self._held:
            message = self._held.pop(0)
            if message["type"] == "http.response.start":
                self.is_stream = Headers(raw=message["headers"]).get("content-type", "").startswith(EVENTS)
            await self.send(message)

    async def _cut_short(self, error: ApiError) -> None:
        self.counts.cut.inc()
        await self.fail(error)
