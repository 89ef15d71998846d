"""Accept connections up to a limit, also when the process runs out of file descriptors."""

import asyncio
import errno
import logging
import resource
import socket
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus

from whet.server.http.connection import Connection
from whet.server.http.errors import unavailable

_log = logging.getLogger("whet.server")

_AT_ONCE = 64  # connections accepted before other tasks on the event loop may run
_RESERVED = 48  # open files that the process needs beside its connections
_PAUSE_S = 0.1
_SELDOM_S = 60.0  # at least so long between two log lines about the same problem
_SCARCE = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Listener:
    """Accept the connections to a listening socket. Use it on the event loop only.

    Above the limit, the connection that has been idle for longest is closed. If all are being served, the new one is
    answered with 503.

    Args:
        listening: The socket, bound and listening.
        make: Returns a new Connection.
        connections: The open connections. uvicorn keeps this set up to date.
        most: How many connections may be open at once.
    """

    def __init__(
        self, listening: socket.socket, make: Callable[[], Connection], connections: set[Connection], most: int
    ) -> None:
        self._socket, self._make, self._connections, self._most = listening, make, connections, most
        self._loop = asyncio.get_running_loop()
        self._pending: set[asyncio.Task[None]] = set()
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
            if self._pending and self._is_full():  # pending connections may be closed to make room once they are set up
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
                _turn_away(client)
                continue
            task = self._loop.create_task(self._connect(client))
            self._pending.add(task)
            task.add_done_callback(self._pending.discard)

    async def _connect(self, client: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make, client)
        except OSError:
            client.close()

    def _is_full(self) -> bool:
        over = sum(
            one.transport.is_closing() and not one.transport.get_write_buffer_size() for one in self._connections
        )
        return len(self._connections) - over + len(self._pending) >= self._most

    def _make_room(self) -> bool:
        """Close the connection that has been idle for longest, or else one whose request is still arriving.

        Returns:
            False if there is none: all connections are being answered.
        """
        idle = [one for one in self._connections if one.standing < 2 and not one.transport.is_closing()]
        if not idle:
            return False
        first = min(idle, key=lambda one: (one.standing, one.since_s))
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


def _turn_away(client: socket.socket) -> None:
    answer = unavailable("the server has reached its limit of connections; send this request again").response()
    head = f"HTTP/1.1 {answer.status_code} {HTTPStatus(answer.status_code).phrase}".encode()
    lines = [b": ".join(pair) for pair in [*answer.raw_headers, (b"connection", b"close")]]
    with suppress(OSError):
        client.send(b"\r\n".join([head, *lines, b"", bytes(answer.body)]))
    client.close()
