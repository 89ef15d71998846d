"""Serve models in one replica of a Ray Serve deployment: a process of its own that answers whole HTTP requests."""

import asyncio
import logging
import sys
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message

from whet.core.artefact import set_threads
from whet.errors import EngineClosed
from whet.server.http.app import make_app
from whet.server.http.lifecycle import Lifecycle
from whet.server.http.run import SWITCH_S
from whet.server.http.settings import Settings
from whet.server.opening import Given, checked_sources, opened
from whet.server.ray_serve.exchange import exchange
from whet.server.replicas.beats import STEP_S

HEALTH_S = 20.0
"""How long a health check waits for an engine."""

_log = logging.getLogger("whet.server")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Hold what a replica serves, and how. Each machine has the models at the same paths.

    Attributes:
        model: The first model; None if there are only `models`.
        settings: The settings of the application. The first names are those of the first model.
        threads: The number of threads, unless a recipe says another one.
        generation: A word that changes if the replicas are to be replaced although nothing else has changed.
    """

    model: str | None
    models: Mapping[str, str]
    given: Given
    settings: Settings
    threads: int
    generation: str


class Replica:
    """Load the models and answer requests, as Ray Serve calls it: from an event loop, in the replica's process."""

    def __init__(self, asked: Asked, name: str = "") -> None:
        self._stack = ExitStack()
        self._asked, self._name = asked, name or _name_in_ray()
        sys.setswitchinterval(SWITCH_S)
        set_threads(asked.threads)
        sources = checked_sources(asked.model, asked.models, asked.settings.served_names)
        self._models = self._stack.enter_context(opened(sources, asked.given, _log.warning))
        lifecycle = Lifecycle()
        self._app: ASGIApp = make_app(self._models, asked.settings, lifecycle)
        lifecycle.ready()
        self._answered_s = dict.fromkeys(self._models.engines, time.monotonic())

    async def answer(self, head: Mapping[str, Any], body: bytes) -> AsyncGenerator[list[Message], None]:
        """Yield the ASGI messages of the answer to one request; see `exchange`."""
        async with aclosing(exchange(self._app, head, body)) as answer:
            async for messages in answer:
                yield messages

    async def metrics(self) -> tuple[str, str]:
        """Return the replica's name and what it says on /metrics."""
        head = {"method": "GET", "path": "/metrics", "raw_path": b"/metrics", "query_string": b"", "headers": []}
        found = [message async for messages in self.answer(head, b"") for message in messages]
        return self._name, b"".join(message.get("body", b"") for message in found).decode()

    async def generation(self) -> str:
        """Return the word of `Asked`: who deployed this replica."""
        return self._asked.generation

    async def check_health(self) -> None:
        """Raise an error if a step of an engine takes too long. Ray Serve then replaces this replica."""
        for names, engine in self._models.engines.items():
            try:
                await asyncio.to_thread(engine.ping, HEALTH_S)
                self._answered_s[names] = time.monotonic()
            except (TimeoutError, EngineClosed) as error:
                if isinstance(error, EngineClosed) or time.monotonic() - self._answered_s[names] > STEP_S:
                    raise RuntimeError(f"the engine of {engine.name} does not answer: {error}") from error

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """Return the application for Ray's own HTTP proxies, where they are used."""
        return self._app

    def __del__(self) -> None:
        """End the engines. Ray Serve calls this when all requests are answered."""
        self._stack.close()


def _name_in_ray() -> str:
    from ray import serve

    return str(serve.get_replica_context().replica_id.unique_id)
