"""Read the body of a request up to a size limit, and answer also clients that are still sending."""

import asyncio
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Send

from whet.server.http.errors import ApiError, invalid, unavailable

DISCARDED = 16  # an unwanted body is read and dropped up to this multiple of the size limit; then the connection closes
PATIENCE_S = 30.0
BODY = "whet.body"  # the key of the body in a request's ASGI scope

_CLOSE = (b"connection", b"close")


class Bodies:
    """Count the bytes of all bodies being received. Above `most_bytes`, the largest unfinished one is refused.

    So many large bodies that never end cannot keep out a small one.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._held: dict[Body, int] = {}

    @property
    def num_bytes(self) -> int:
        return sum(self._held.values())

    def add(self, body: "Body", num_bytes: int) -> None:
        """Count bytes that have arrived for a body, and refuse the largest unfinished bodies above the limit.

        Raises:
            ApiError: 503 if `body` itself is the one to refuse.
        """
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
        """Stop counting a body, whose bytes are no longer in memory."""
        self._held.pop(body, None)


class Body:
    """Stand between a connection and the application, which calls `receive` and `send` of this object.

    An answer may be ready before the body has arrived: the body is too large, or the key is wrong. If the server closed
    the connection while the client still sends, TCP would reset it, and many clients would never read the answer. So
    the answer is sent first. Then the rest of the body is read and dropped, up to a limit. Only then does the answer
    end. A body that has not arrived completely within `timeout_s` is refused.
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
        self._is_kept = True  # False once the rest of the body is dropped
        self._num_bytes = 0
        self._stated = headers.get("content-length")
        self._is_framed_twice = self._stated is not None and "transfer-encoding" in headers
        self.is_left = self._stated is not None or "transfer-encoding" in headers
        self._is_sent = "expect" not in headers  # a client that sent Expect waits for a "100 Continue" first
        self._waiting: asyncio.Timeout | None = None
        self.is_cut: ApiError | None = None  # the error for which the rest of the body is not read

    def check_length(self) -> None:
        """Check the length that the headers state.

        Raises:
            ApiError: 413 if it is above the limit, 400 if it is not a number or contradicts another header.
        """
        if self._is_framed_twice:  # two servers in a row could read two different requests from it (RFC 9112, 6.3)
            raise invalid("a request has Content-Length or Transfer-Encoding, not both", code="invalid_http")
        if self._stated is None:
            return
        if not (self._stated.isascii() and self._stated.isdigit()):
            raise invalid("Content-Length is not a number of bytes; send one, or leave the header out")
        if int(self._stated) > self._most:
            raise self._too_large()

    async def receive(self) -> Message:
        """Wait for the next part of the body; after the last part, wait until the client disconnects.

        Raises:
            ApiError: 413 if the body is above the limit (not every request states its length), 408 if it is late,
                503 if the server shuts down or has too many bodies in memory.
        """
        if not self.is_left:
            return await self._receive()
        message = await self._next()
        if self._num_bytes > self._most:
            raise self._too_large()
        return message

    async def send(self, message: Message) -> None:
        """Send the next part of the answer. The last part is held back until the body has been read and dropped."""
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
        """Report that the bytes of this body are no longer in memory."""
        self._bodies.release(self)

    def cut(self, error: ApiError | None = None) -> None:
        """Stop waiting for the rest of the body. Without an error, the reason is that the server shuts down."""
        why = "the server is shutting down, and this request did not arrive in time; send it again later"
        self.is_cut = error or unavailable(why)
        if self._waiting is not None:
            self._waiting.reschedule(0)

    def _closing(self) -> list[tuple[bytes, bytes]]:
        """Return the header that closes the connection, unless the end of the body is known and can be reached."""
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
        message = f"the body did not arrive completely within {self._timeout_s:g} s; send it again, faster"
        return ApiError(408, message, code="body_timeout")

    def _too_large(self) -> ApiError:
        message = f"the body is larger than the {self._most} bytes that this server reads"
        return ApiError(413, message, code="body_too_large")


async def content_of(request: Request) -> bytes:
    """Return all of a request's body.

    Raises:
        ApiError: The client leaves, or sends too much or too slowly.
    """
    try:
        return b"".join([part async for part in request.stream()])
    except ClientDisconnect:
        raise invalid("the client left before its request had arrived completely") from None
