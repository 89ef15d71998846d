"""Handle one connection, with time limits and with JSON answers to bytes that are not valid HTTP.

A client that sends half a request head, or does not read its answer, is disconnected after a timeout.

Source: uvicorn's H11Protocol. Its own answer to invalid HTTP is plain text, and is lost if the client is still sending.
"""

import asyncio
import sys
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from whet.server.http.body import DISCARDED, PATIENCE_S
from whet.server.http.errors import ApiError
from whet.server.http.settings import MAX_BODY_BYTES, Settings

_STATUSES = {400, 413, 431, 501}
_MOST_READ = 8 * 2**10  # bytes read at once: 32 KiB of a body in chunks of one byte take 0.1 s to parse


class Connection(H11Protocol):
    """Extend uvicorn's connection by answers to invalid HTTP and by timeouts for slow clients."""

    def __init__(self, *args: Any, settings: Settings, **options: Any) -> None:
        super().__init__(*args, **options)
        self._settings = settings
        self._is_refused = False
        self._num_discarded = 0
        self._unread = bytearray()
        self._head: asyncio.TimerHandle | None = None
        self._write: asyncio.TimerHandle | None = None
        self.since_s = self.loop.time()  # when the last answer ended; before the first one, when the client connected

    @property
    def standing(self) -> int:
        """Return 0 if the connection is idle, 1 if a request's body is still arriving, 2 if a request is worked on."""
        if self.cycle is None or self.cycle.response_complete:
            return 0
        return 1 if self.cycle.more_body and not self.cycle.response_started else 2

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the keep-alive timer at once, so that a client that never sends a request is disconnected too."""
        super().connection_made(transport)
        transport.max_size = _MOST_READ  # type: ignore[attr-defined]  # asyncio's own name for it
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def data_received(self, data: bytes) -> None:
        """Read data in pieces, so that others are served meanwhile: TLS delivers up to 256 KiB at once."""
        is_reading = bool(self._unread)
        self._unread += data
        if not is_reading:
            self._read_on()
        if self._unread:
            self.transport.pause_reading()

    def _read_on(self) -> None:
        """Read one piece of the received data, and schedule the next piece."""
        if not self._unread:  # the client has disconnected
            return
        piece = bytes(self._unread[:_MOST_READ])
        del self._unread[:_MOST_READ]
        self._read(piece)
        if self._unread:
            self.loop.call_soon(self._read_on)
        elif not self.flow.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def _read(self, data: bytes) -> None:
        """Read received data. Drop what arrives after an error was answered; close the connection above a limit."""
        if not self._is_refused:
            super().data_received(data)
            self._watch_head()
            return
        self._num_discarded += len(data)
        if self._num_discarded > DISCARDED * MAX_BODY_BYTES:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Answer invalid HTTP with a JSON error. uvicorn calls this while it handles h11's exception.

        The connection is read for a while longer, so that the answer is not lost.
        """
        self._is_refused = True
        if self.cycle is not None and not self.cycle.response_complete:  # it waits for a body that cannot arrive
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # an answer has been sent, or is being sent
            self.transport.close()
            return
        self._refuse(_refusal(sys.exception()))

    def pause_writing(self) -> None:
        """Start the timer after which the connection is aborted, as the client does not read."""
        super().pause_writing()
        if self._write is None:
            self._write = self.loop.call_later(self._settings.write_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        _cancel(self._write)
        self._write = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unread.clear()
        _cancel(self._head)
        _cancel(self._write)

    def on_response_complete(self) -> None:
        self.since_s = self.loop.time()
        super().on_response_complete()

    def _watch_head(self) -> None:
        """Start a timer when a request's head has begun, and stop it when the head is complete."""
        if self.conn.their_state is not h11.IDLE:
            _cancel(self._head)
            self._head = None
        elif self._head is None and not self.transport.is_closing():
            self._head = self.loop.call_later(self._settings.head_timeout_s, self._head_is_late)

    def _head_is_late(self) -> None:
        self._head = None
        if self.conn.their_state is not h11.IDLE or self._is_refused or self.transport.is_closing():
            return
        self._is_refused = True
        message = f"the head of the request did not arrive completely within {self._settings.head_timeout_s:g} s"
        self._refuse(ApiError(408, message, code="head_timeout"))
        self.transport.close()

    def _refuse(self, error: ApiError) -> None:
        """Answer with an error, and close the connection a while later, so that the client can read the answer."""
        answer = error.response()
        headers = [*answer.raw_headers, (b"connection", b"close")]
        events = [
            h11.Response(status_code=answer.status_code, headers=headers, reason=HTTPStatus(answer.status_code).phrase),
            h11.Data(data=bytes(answer.body)),
            h11.EndOfMessage(),
        ]
        for event in events:
            self.transport.write(self.conn.send(event) or b"")
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(PATIENCE_S, self.transport.close)

    def _should_upgrade(self) -> bool:
        """Return False: a request to switch to web sockets is answered as plain HTTP, which HTTP allows."""
        return False


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def _refusal(error: BaseException | None) -> ApiError:
    hint = getattr(error, "error_status_hint", 400)
    status = hint if hint in _STATUSES else 400
    if status == 431:
        return ApiError(
            431, "the head of the request is too long; send fewer or shorter headers", code="head_too_large"
        )
    return ApiError(status, f"this is not a valid HTTP request: {error}", code="invalid_http")
