"""Ask one replica over its Unix socket, and count what it works on."""

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from whet.errors import MissingExtra
from whet.server.http.errors import HEADER_LENGTH

try:
    import aiohttp
    from yarl import URL
except ImportError as error:
    raise MissingExtra(error.name or "aiohttp", "serve", "whet serve --replicas") from error

Headers = Sequence[tuple[bytes, bytes]]

BROKEN = (aiohttp.ClientError, OSError)
"""What is raised where a replica ends, or breaks a connection off."""

NOT_SENT = (aiohttp.ClientConnectorError,)
"""Of these, what is raised before a replica has seen anything of the request."""

# What a replica reads of a request's head. Nothing else is passed on.
_PASSED_ON = frozenset(
    name.encode().lower()
    for name in (
        *("Host", "Authorization", "Content-Type", "Content-Encoding", "Accept", "Origin", HEADER_LENGTH),
        *("Traceparent", "Tracestate"),
    )
)
_NOT_ADDED = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
# Each connection has its own; uvicorn writes the date of the answer.
_OF_CONNECTION = frozenset((b"connection", b"keep-alive", b"transfer-encoding", b"date", b"server"))
_IDLE_S = 30.0  # then a connection is closed, before the replica does it
_CONNECT_S = 10.0
_READ_BYTES = 2**16  # that are read ahead of a slow client
_ids = itertools.count()


class Upstream:
    """Connect to one replica. Use it on the event loop only.

    Attributes:
        number: The replica's place. One that is started in its place has the same.
        id: A number that no other has.
        num_open: How many requests it works on.
        is_taking: Whether it gets new requests.
        ended: Set once its process has ended.
        suspects: Held by a request that was on a replica that died, while it begins here.
    """

    def __init__(self, number: int, path: str) -> None:
        self.number, self.id = number, next(_ids)
        self.num_open = 0
        self.is_taking = True
        self.ended = asyncio.Event()
        self.suspects = asyncio.Lock()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(path=path, limit=0, keepalive_timeout=_IDLE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=_NOT_ADDED,
            read_bufsize=_READ_BYTES,
        )

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count a request while the block runs."""
        self.num_open += 1
        self._is_idle.clear()
        try:
            yield
        finally:
            self.num_open -= 1
            if not self.num_open:
                self._is_idle.set()

    async def ask(self, method: str, target: str, headers: Headers, body: bytes) -> aiohttp.ClientResponse:
        """Send a request, and return its answer once the head has arrived. Raises one of BROKEN."""
        return await self._session.request(
            method,
            URL(f"http://replica{target}", encoded=True),
            headers=passed_on(headers),
            data=body or None,
            allow_redirects=False,
        )

    async def get(self, target: str, headers: Headers = (), *, timeout_s: float) -> bytes | None:
        """Return what the replica answers with status 200; None where it answers otherwise, or not in time."""
        try:
            async with asyncio.timeout(timeout_s):
                async with await self.ask("GET", target, [(b"host", b"localhost"), *headers], b"") as answer:
                    return await answer.read() if answer.status == 200 else None
        except (*BROKEN, TimeoutError):
            return None

    async def idle(self, timeout_s: float) -> None:
        """Wait until no request is open, at most for so long."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._is_idle.wait(), timeout_s)

    async def close(self) -> None:
        await self._session.close()


def passed_on(headers: Headers) -> list[tuple[str, str]]:
    """Return the headers of a request that the replica reads. Names are in lower case, as ASGI has them."""
    return [
        (name.decode("latin-1"), value.decode("ascii"))
        for name, value in headers
        if name in _PASSED_ON and value.isascii()
    ]


def answered_headers(answer: aiohttp.ClientResponse) -> list[tuple[bytes, bytes]]:
    """Return the headers of an answer that are for the client."""
    return [(name, value) for name, value in answer.raw_headers if name.lower() not in _OF_CONNECTION]
