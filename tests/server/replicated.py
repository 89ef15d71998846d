"""A proxy before replicas that are fakes: servers of this process, on Unix sockets, which can be made to die."""

import asyncio
import http.client
import json
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from asking import Answer, ask
from fake_engine import TOKENIZER, WORD_IDS, FakeEngine
from replicated_process import wait_for

from whet.server.http.hardened import WebServer
from whet.server.http.lifecycle import Lifecycle
from whet.server.http.run import HttpServer
from whet.server.http.settings import Settings
from whet.server.replicas.fleet import Fleet
from whet.server.replicas.front import make_front
from whet.server.replicas.upstream import Upstream
from whet.ui.network import bind, bind_file

PATH = "/v1/completions"
BODY = {"prompt": "Once", "max_tokens": 10}
TEXT = TOKENIZER.decode(WORD_IDS[:10])


class Replicated(WebServer):
    """The proxy. `engines` are the fakes by number, and `fleet` and `upstreams` are there once it has started."""

    def __init__(self, engines: list[FakeEngine], directory: Path, patience_s: float, settings: Settings) -> None:
        self.engines, self.directory, self.patience_s = engines, directory, patience_s
        self.servers: list[HttpServer] = []
        self.upstreams: list[Upstream] = []
        self.inner = Settings(served_names=("fake",), api_keys=settings.api_keys, shutdown_timeout_s=0.2)
        for number in range(len(engines)):
            self.servers.append(self.replica(number))
        super().__init__(self._application, settings, Lifecycle(), bind("127.0.0.1", 0))

    def replica(self, number: int) -> HttpServer:
        bound = bind_file(str(self.directory / f"{number}-{len(self.servers)}"))
        server = HttpServer(self.engines[number], self.inner, bound)  # type: ignore[arg-type]
        server.start()
        return server

    async def _application(self, scope: Any, receive: Any, send: Any) -> None:
        await self.front(scope, receive, send)

    async def _serve(self, on_ready: Callable[[], None]) -> None:
        self.fleet = Fleet(len(self.engines), patience_s=self.patience_s)
        self.front = make_front(self.fleet, self._settings, self._lifecycle)
        for number, server in enumerate(self.servers):
            self.upstreams.append(Upstream(number, server.host))
            await self.fleet.put(self.upstreams[-1])
        try:
            await super()._serve(on_ready)
        finally:
            for one in self.upstreams:
                await one.close()

    @property
    def num_running(self) -> int:
        """How many requests the engines work on."""
        return sum(len(engine.running) for engine in self.engines)

    @property
    def num_open(self) -> int:
        """How many requests the proxy has passed on and not answered yet."""
        return sum(one.num_open for one in self.upstreams)

    def kill(self, number: int) -> None:
        """Let a replica end as by kill -9: its connections break, and its socket is closed."""
        server, upstream = self.servers[number], self.upstreams[number]
        assert server._loop is not None

        def cut() -> None:
            for listener in server._server.servers:
                listener.close()
            server._server.servers = []
            server._socket.close()
            for connection in list(server._server.server_state.connections):
                connection.transport.abort()  # type: ignore[union-attr]

        server._loop.call_soon_threadsafe(cut)
        self.do(lambda: (upstream.ended.set(), self.fleet.remove(upstream)))

    def revive(self, number: int) -> None:
        """Put another replica in the place of one that died."""
        self.engines[number].reset()
        self.servers.append(self.replica(number))
        self.put(number, self.servers[-1].host)

    def put(self, number: int, path: str) -> None:
        """Let what listens on a Unix socket take requests."""

        async def put() -> None:
            self.upstreams.append(Upstream(number, path))
            await self.fleet.put(self.upstreams[-1])

        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(put(), self._loop).result(10)

    def do(self, work: Callable[[], object]) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(work)


@contextmanager
def replicated(number: int = 2, *, patience_s: float = 5.0, **settings: Any) -> Iterator[Replicated]:
    """Yield a proxy of so many fakes for the time of the block."""
    settings = {"served_names": ("fake",), "shutdown_timeout_s": 0.2, **settings}
    engines = [FakeEngine() for _ in range(number)]
    with tempfile.TemporaryDirectory() as directory:
        proxy = Replicated(engines, Path(directory), patience_s, Settings(**settings))
        proxy.start()
        try:
            yield proxy
        finally:
            proxy.stop()
            for engine in engines:
                engine.let_go()
            for server in proxy.servers:
                server.stop()


def asking(proxy: Replicated, path: str, body: object = None, **more: Any) -> Answer:
    return ask(proxy, path, body, **more)  # type: ignore[arg-type]


def own(proxy: Replicated, body: dict[str, Any] = BODY) -> int:
    """The number of the replica that a request goes to while all are idle."""
    before = [len(engine.asked) for engine in proxy.engines]
    assert ask(proxy, PATH, body).status == 200  # type: ignore[arg-type]
    [number] = [i for i, engine in enumerate(proxy.engines) if len(engine.asked) > before[i]]
    return number


def held(proxy: Replicated) -> None:
    for engine in proxy.engines:
        engine.held = True


@contextmanager
def begun(proxy: Replicated, others: ThreadPoolExecutor, body: dict[str, Any]) -> Iterator[http.client.HTTPResponse]:
    """A stream of which three tokens have arrived, and which is held then."""
    connection = http.client.HTTPConnection(proxy.host, proxy.port, timeout=30)
    before = proxy.num_running
    connection.request("POST", PATH, json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
    waiting = others.submit(connection.getresponse)
    wait_for(lambda: proxy.num_running == before + 1)
    for engine in proxy.engines:
        engine.step(3)
    response = waiting.result(30)
    text, wanted = "", TOKENIZER.decode(WORD_IDS[:3])
    while text != wanted:
        line = response.readline()
        if line.startswith(b"data: "):
            text += json.loads(line.removeprefix(b"data: "))["choices"][0]["text"]
    yield response
    response.close()
    connection.close()


def last_event(response: http.client.HTTPResponse) -> Any:
    lines = [line for line in response.read().split(b"\n") if line.startswith(b"data: ")]
    assert lines[-1] == b"data: [DONE]"
    return json.loads(lines[-2].removeprefix(b"data: "))
