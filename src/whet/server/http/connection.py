"""One connection: bytes that are no HTTP, or more of it than a head may have, are answered like any other mistake.

Source: uvicorn's H11Protocol, whose own answer is plain text, and lost where the client is still sending.
"""

import asyncio
import sys
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from whet.server.http.body import DISCARDED, PATIENCE_S
from whet.server.http.errors import ApiError
from whet.server.http.settings import MAX_BODY_BYTES

_STATUSES = {400, 413, 431, 501}


class Connection(H11Protocol):
    """uvicorn's connection, but for what it cannot read."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._is_refused = False
        self._num_discarded = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio.Protocol. One that asks nothing is closed like one that asks nothing more."""
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol. What comes after a refusal is dropped, up to a bound."""
        if not self._is_refused:
            super().data_received(data)
            return
        self._num_discarded += len(data)
        if self._num_discarded > DISCARDED * MAX_BODY_BYTES:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Called while h11's error is handled: answer, and read on for a while, so that the answer is not lost."""
        self._is_refused = True
        if self.cycle is not None and not self.cycle.response_complete:  # it waits for a body that cannot come
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # an answer is out, or on its way
            self.transport.close()
            return
        answer = _refusal(sys.exception()).response()
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
        """Never: the offer is passed over, as HTTP allows, without a word about web sockets."""
        return False


def _refusal(error: BaseException | None) -> ApiError:
    hint = getattr(error, "error_status_hint", 400)
    status = hint if hint in _STATUSES else 400
    if status == 431:
        return ApiError(431, "the head of the request is too long", code="head_too_large")
    return ApiError(status, f"this is no HTTP request: {error}", code="invalid_http")
