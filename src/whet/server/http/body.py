"""A request's body: no more of it is read than is allowed, and an answer reaches a client that is still sending."""

import asyncio
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Send

from whet.server.http.errors import ApiError, invalid, unavailable

DISCARDED = 16  # times what is read: so much of what nobody wants is thrown away before a connection is closed
PATIENCE_S = 30.0

_CLOSE = (b"connection", b"close")


class Body:
    """Stands between a connection and the application, which takes its `receive` and `send` for the connection's.

    An answer may be ready before the body has come: it is too large, or the key is wrong. A connection that is closed
    while its client sends is reset, and many clients then never read the answer. So the answer goes out first; what is
    left of the body is read, dropped, and bounded; and only then does the answer end.
    """

    def __init__(self, headers: Headers, receive: Receive, send: Send, most_bytes: int) -> None:
        self._receive = receive
        self._send = send
        self._most = most_bytes
        self._num_bytes = 0
        self._stated = headers.get("content-length")
        self._is_left = self._stated is not None or "transfer-encoding" in headers
        self._is_sent = "expect" not in headers  # who expects to be told has sent none yet
        self._waiting: asyncio.Timeout | None = None
        self._is_cut = False

    def check_length(self) -> None:
        """Raises ApiError where it is said to be too large (413), or says nonsense (400)."""
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
        if not self._is_left:
            return await self._receive()
        message = await self._next()
        if self._num_bytes > self._most:
            raise self._too_large()
        return message

    async def send(self, message: Message) -> None:
        """The next part of the answer. The last one comes once the body has."""
        if not self._is_left:
            await self._send(message)
        elif message["type"] == "http.response.start":
            await self._send({**message, "headers": [*message.get("headers", ()), *self._closing()]})
        elif message.get("more_body"):
            await self._send(message)
        else:
            await self._send({**message, "more_body": True})
            await self._discard()
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def cut(self) -> None:
        """Wait for no more of it: the server ends."""
        self._is_cut = True
        if self._waiting is not None:
            self._waiting.reschedule(0)

    def _closing(self) -> list[tuple[bytes, bytes]]:
        """A connection with no known end of what is to be dropped is of no more use."""
        is_bounded = self._stated is not None and self._stated.isdigit() and int(self._stated) <= self._most
        return [] if is_bounded and self._is_sent else [_CLOSE]

    async def _discard(self) -> None:
        if not self._is_sent:
            return
        with suppress(TimeoutError, ApiError):
            async with asyncio.timeout(PATIENCE_S):
                while self._is_left and self._num_bytes < self._most * DISCARDED:
                    await self._next()

    async def _next(self) -> Message:
        if self._is_cut:
            raise _ending()
        self._is_sent = True
        try:
            async with asyncio.timeout(None) as self._waiting:
                message = await self._receive()
        except TimeoutError:
            raise _ending() from None
        finally:
            self._waiting = None
        self._num_bytes += len(message.get("body", b""))
        self._is_left = bool(message.get("more_body"))
        return message

    def _too_large(self) -> ApiError:
        message = f"the body is larger than the {self._most} bytes that this server reads"
        return ApiError(413, message, code="body_too_large")


def _ending() -> ApiError:
    return unavailable("the server is ending, and this request has not come whole")
