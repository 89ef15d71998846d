"""Requests to a server under test, as a plain client makes them."""

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fake_engine import FakeEngine

from whet.server.http.run import HttpServer
from whet.server.http.settings import Settings
from whet.ui.network import bind


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    @property
    def error(self) -> dict[str, Any]:
        return dict(self.json["error"])

    @property
    def events(self) -> list[Any]:
        """The data of each event; the last one is "[DONE]", as text."""
        parts = self.content.decode().split("\n\n")
        assert parts.pop() == ""
        data = [part.removeprefix("data: ") for part in parts]
        assert data.pop() == "[DONE]"
        return [json.loads(one) for one in data]


@contextmanager
def serving(engine: FakeEngine, **settings: Any) -> Iterator[HttpServer]:
    """A server on a free port for the time of the block."""
    settings = {"served_names": ("fake",), "shutdown_timeout_s": 0.2, **settings}
    server = HttpServer(engine, Settings(**settings), bind("127.0.0.1", 0))  # type: ignore[arg-type]
    server.start()
    try:
        yield server
    finally:
        server.stop()


def ask(
    server: HttpServer, path: str, body: object = None, *, method: str = "", headers: dict[str, str] | None = None
) -> Answer:
    """A POST of JSON where there is a body; bytes are sent as they are."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
    content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    given = {"Content-Type": "application/json", **(headers or {})} if body is not None else headers or {}
    try:
        connection.request(method or ("GET" if body is None else "POST"), path, content, given)
        response = connection.getresponse()
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()
