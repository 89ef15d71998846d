"""Accept connections up to a limit, also when the process runs out of file descriptors."""

import asyncio
import errno
import logging
import resource
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus

from whet.server.http.connection import Connection
from whet.server.http.errors import unavailable

_log = logging.getLogger("whet.server")

_AT_ONCE = 64  # connections accepted before other tasks on the event loop may run
_RESERVED = 48  # open files that the process needs beside its connections
_PAUSE_S = 0.1
_GOODBYE_S = 2.0  # how long a client may take to confirm the end of a TLS connection
_SELDOM_S = 60.0  # at least so long between two log lines about the same problem
_SCARCE = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Listener:
    """Accept the connections to a listening socket. Use it on the event loop only.

    Above `most`, the connection that has been idle for longest is closed. If all are being served, the new one is
    answered with 503. A connection in its TLS handshake counts as idle. uvicorn keeps `connections` up to date.
    """

    def __init__(
        self,
        listening: socket.socket,
        make: Callable[[], Connection],
        connections: set[Connection],
        most: int,
        *,
        tls: ssl.SSLContext | None = None,
        handshake_s: float = 10.0,
    ) -> None:
        self._socket, self._make, self._connections, self._most = listening, make, connections, most
        self._tls, self._handshake_s = tls, handshake_s
        self._loop = asyncio.get_running_loop()
        self._pending: dict[asyncio.Task[None], float] = {}  # since when, oldest first
        self._is_closed = False
        self._last_said_s = -_SELDOM_S
        listening.setblocking(False)
        self._resume()

    def close(self) -> None:
        """Stop accepting connections."""
        self._is_closed = True
        self._loop.remove_reader(self._socket.fileno())

    async def wait_closed(self) -> None:
        """Wait until the connections that are being accepted are set up."""
        if self._pending:
            await asyncio.wait(self._pending)

    def _resume(self) -> None:
        if not self._is_closed:
            self._loop.add_reader(self._socket.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            # Without TLS, pending connections are set up in a moment and may be closed then to make room.
            if self._tls is None and self._pending and self._is_full():
                return
            try:
                client, _address = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if error.errno not in _SCARCE:
                    raise
                self._wait_for_room(error)
                return
            client.setblocking(False)
            if self._is_full() and not self._make_room():
                _turn_away(client, is_tls=self._tls is not None)
                continue
            task = self._loop.create_task(self._connect(client))
            self._pending[task] = self._loop.time()
            task.add_done_callback(partial(self._connected, client))

    async def _connect(self, client: socket.socket) -> None:
        limits = {"ssl_handshake_timeout": self._handshake_s, "ssl_shutdown_timeout": _GOODBYE_S} if self._tls else {}
        try:
            await self._loop.connect_accepted_socket(self._make, client, ssl=self._tls, **limits)
        except OSError:  # gone again, or no TLS, or too slow at it
            client.close()

    def _connected(self, client: socket.socket, task: asyncio.Task[None]) -> None:
        """Forget a connection that was being accepted. Close it if it was cancelled to make room."""
        self._pending.pop(task, None)
        if task.cancelled():
            client.close()

    def _is_full(self) -> bool:
        over = sum(
            one.transport.is_closing() and not one.transport.get_write_buffer_size() for one in self._connections
        )
        return len(self._connections) - over + len(self._pending) >= self._most

    def _make_room(self) -> bool:
        """Close the connection that has been idle for longest, or else one whose request is still arriving.

        Return False if there is none: all connections are being answered.
        """
        idle = [one for one in self._connections if one.standing < 2 and not one.transport.is_closing()]
        first = min(idle, key=lambda one: (one.standing, one.since_s), default=None)
        if self._tls is not None and self._pending:
            task, since_s = next(iter(self._pending.items()))
            if first is None or (0, since_s) < (first.standing, first.since_s):
                del self._pending[task]
                task.cancel()
                return True
        if first is None:
            return False
        self._connections.discard(first)
        first.transport.abort()
        return True

    def _wait_for_room(self, error: OSError) -> None:
        """Close one connection because no file descriptors are left, and go on accepting after a pause."""
        self._make_room()
        self._loop.remove_reader(self._socket.fileno())
        self._loop.call_later(_PAUSE_S, self._resume)
        if self._loop.time() - self._last_said_s >= _SELDOM_S:
            self._last_said_s = self._loop.time()
            _log.warning("no new connections for now: %s; raise the limit of open files (ulimit -n)", error.strerror)


def most_connections(wanted: int) -> int:
    """Return how many connections may be open at once: `wanted`, or fewer if the limit of open files is lower."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft - _RESERVED))


def _turn_away(client: socket.socket, *, is_tls: bool) -> None:
    """Answer 503 and close the connection. Before a TLS handshake no answer can be sent."""
    if is_tls:
        client.close()
        return
    answer = unavailable("the server has reached its limit of connections; send this request again").response()
    head = f"HTTP/1.1 {answer.status_code} {HTTPStatus(answer.status_code).phrase}".encode()
    lines = [b": ".join(pair) for pair in [*answer.raw_headers, (b"connection", b"close")]]
    with suppress(OSError):
        client.send(b"\r\n".join([head, *lines, b"", bytes(answer.body)]))
    client.close()
