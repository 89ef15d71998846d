"""A request's body: no more of it is read than is allowed, and an answer reaches a client that is still sending."""

import asyncio
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Send

from whet.server.http.errors import ApiError, invalid, unavailable

DISCARDED = 16  # times what is read: so much of what nobody wants is thrown away before a connection is closed
PATIENCE_S = 30.0
BODY = "whet.body"  # where in a request's scope its body is

_CLOSE = (b"connection", b"close")


class Bodies:
    """The bodies that are being received, and the bytes of them that are held, all together.

    Where there are too many, the unfinished body that holds most is refused: many large bodies that never end cannot
    keep out a small one.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._held: dict[Body, int] = {}

    @property
    def num_bytes(self) -> int:
        return sum(self._held.values())

    def add(self, body: "Body", num_bytes: int) -> None:
        """Count bytes of a body. Raises ApiError (503) where it must give way itself."""
        self._held[body] = self._held.get(body, 0) + num_bytes
        while self.num_bytes > self._most:
            unfinished = [one for one in self._held if one.is_left or one is body]
            largest = max(unfinished, key=lambda one: self._held[one])
            del self._held[largest]
            error = unavailable("the server has too much to read just now; send this request again")
            if largest is body:
                body.is_cut = error
                raise error
            largest.cut(error)

    def release(self, body: "Body") -> None:
        """A body's bytes are held no longer."""
        self._held.pop(body, None)


class Body:
    """Stands between a connection and the application, which takes its `receive` and `send` for the connection's.

    An answer may be ready before the body has come: it is too large, or the key is wrong. A connection that is closed
    while its client sends is reset, and many clients then never read the answer. So the answer goes out first; what is
    left of the body is read, dropped, and bounded; and only then does the answer end. A body that is not whole after
    timeout_s is refused.
    """

    def __init__(
        self,
        headers: Headers,
        receive: Receive,
        send: Send,
        *,
        most_bytes: int,
        timeout_s: float = 60.0,
        bodies: Bodies | None = None,
    ) -> None:
        self._receive = receive
        self._send = send
        self._most = most_bytes
        self._timeout_s = timeout_s
        self._deadline = asyncio.get_running_loop().time() + timeout_s
        self._bodies = bodies or Bodies(most_bytes)
        self._is_kept = True  # what comes is kept, not dropped
        self._num_bytes = 0
        self._stated = headers.get("content-length")
        self._is_framed_twice = self._stated is not None and "transfer-encoding" in headers
        self.is_left = self._stated is not None or "transfer-encoding" in headers
        self._is_sent = "expect" not in headers  # who expects to be told has sent none yet
        self._waiting: asyncio.Timeout | None = None
        self.is_cut: ApiError | None = None  # why no more of it is waited for

    def check_length(self) -> None:
        """Raises ApiError where it is said to be too large (413), or says nonsense (400)."""
        if self._is_framed_twice:  # two servers in a row may see two different requests in it (RFC 9112, 6.3)
            raise invalid("a request has Content-Length or Transfer-Encoding, not both", code="invalid_http")
        if self._stated is None:
            return
        if not (self._stated.isascii() and self._stated.isdigit()):
            raise invalid("Content-Length is no number")
        if int(self._stated) > self._most:
            raise self._too_large()

    async def receive(self) -> Message:
        """The next part; after the last one, that the client has left.

        Raises ApiError where there are too many bytes (413; not every body says how long it is), or the server ends.
        """
        if not self.is_left:
            return await self._receive()
        message = await self._next()
        if self._num_bytes > self._most:
            raise self._too_large()
        return message

    async def send(self, message: Message) -> None:
        """The next part of the answer. The last one comes once the body has."""
        if not self.is_left:
            await self._send(message)
        elif message["type"] == "http.response.start":
            self._is_kept = False
            self.release()
            await self._send({**message, "headers": [*message.get("headers", ()), *self._closing()]})
        elif message.get("more_body"):
            await self._send(message)
        else:
            await self._send({**message, "more_body": True})
            await self._discard()
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def release(self) -> None:
        """What came of it is held no longer."""
        self._bodies.release(self)

    def cut(self, error: ApiError | None = None) -> None:
        """Wait for no more of it; without an error, because the server ends."""
        self.is_cut = error or _ending()
        if self._waiting is not None:
            self._waiting.reschedule(0)

    def _closing(self) -> list[tuple[bytes, bytes]]:
        """A connection with no known end of what is to be dropped is of no more use."""
        is_bounded = self._stated is not None and self._stated.isdigit() and int(self._stated) <= self._most
        is_reusable = is_bounded and self._is_sent and not self._is_framed_twice and self.is_cut is None
        return [] if is_reusable else [_CLOSE]

    async def _discard(self) -> None:
        if not self._is_sent:
            return
        with suppress(TimeoutError, ApiError):
            async with asyncio.timeout(PATIENCE_S):
                while self.is_left and self._num_bytes < self._most * DISCARDED:
                    await self._next()

    async def _next(self) -> Message:
        if self.is_cut is not None:
            raise self.is_cut
        self._is_sent = True
        try:
            async with asyncio.timeout_at(self._deadline if self._is_kept else None) as self._waiting:
                message = await self._receive()
        except TimeoutError:
            self.is_cut = self.is_cut or self._late()
            raise self.is_cut from None
        finally:
            self._waiting = None
        num_bytes = len(message.get("body", b""))
        self._num_bytes += num_bytes
        self.is_left = bool(message.get("more_body"))
        if self._is_kept and self._num_bytes <= self._most:
            self._bodies.add(self, num_bytes)
        return message

    def _late(self) -> ApiError:
        message = f"the body has not come whole within {self._timeout_s:g} s"
        return ApiError(408, message, code="body_timeout")

    def _too_large(self) -> ApiError:
        message = f"the body is larger than the {self._most} bytes that this server reads"
        return ApiError(413, message, code="body_too_large")


def _ending() -> ApiError:
    return unavailable("the server is ending, and this request has not come whole")
