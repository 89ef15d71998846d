"""Serve by several replicas on this machine until the process is asked to end."""

import asyncio
import os
import shutil
import socket
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from whet.errors import OptionError, OutputError
from whet.server.asked import Asked
from whet.server.http.hardened import BACKLOG, WebServer
from whet.server.http.lifecycle import Lifecycle
from whet.server.replicas.fit import fitted, shares_of_cores, shares_weights
from whet.server.replicas.fleet import Fleet
from whet.server.replicas.front import make_front
from whet.server.replicas.needs import Needs, needs_of
from whet.server.replicas.replica import Replica
from whet.server.replicas.supervisor import Supervisor
from whet.server.weights_directory import weights_directory
from whet.ui.network import bind, listen

_INNER_SHUTDOWN_S = 1.0  # the proxy waits for requests; a replica that is told to end has none, or is late
_LONGEST_PATH = 80  # bytes; the address of a Unix socket has 108, and some systems have fewer
_PATIENCE = 2  # a replica waits this much longer for a slow reader than the proxy does for its client


def serve_replicas(
    asked: Asked,
    number: int,
    *,
    host: str,
    port: int,
    note: Callable[[str], None] = lambda line: None,
    ready: Callable[["FrontServer"], None] = lambda front: None,
) -> None:
    """Serve by so many processes behind one address until SIGTERM, Ctrl-C or the server's `begin_end`.

    SIGHUP replaces the processes one after the other, while requests are answered. Call it in the main thread.

    Args:
        note: Called with each line that a replica writes, and a sentence for each one that dies or is replaced.
        ready: Called with the server once all replicas take requests. It must not block.

    Raises:
        OptionError: There are too few cores or too little memory, or the port is not available.
        WhetError: What else `whet.serve` raises, as the first replica does.
    """
    shares = shares_of_cores(number)
    needs = needs_of(asked)
    with ExitStack() as stack:
        asked = fitted(_sharing(asked, needs, note, stack), number, needs)
        bound = stack.enter_context(bind(host, port))
        directory = Path(tempfile.mkdtemp(prefix="whet-"))  # which nobody else may read
        try:
            if len(os.fsencode(directory)) > _LONGEST_PATH:
                raise OptionError(f"{directory} is too long a path for sockets: set TMPDIR to a shorter directory")
            front = FrontServer(asked, shares, directory, bound, note)
            front.run(lambda: ready(front))
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def _sharing(asked: Asked, needs: Needs, note: Callable[[str], None], stack: ExitStack) -> Asked:
    """Return the same with a directory in which replicas share their weights, as long as the stack is open."""
    if asked.options.shared_weights is not None or not shares_weights(asked, needs):
        return asked
    try:
        directory = stack.enter_context(weights_directory(needs.weights_bytes, on_disk=Path(needs.cache)))
    except OutputError as error:
        note(f"each replica has weights of its own: {error}")
        return asked
    return replace(asked, options=replace(asked.options, shared_weights=str(directory)))


class FrontServer(WebServer):
    """Serve as a proxy of replicas, which it starts and ends. Clients can connect once all replicas take requests."""

    hears_hangup = True

    def __init__(
        self,
        asked: Asked,
        shares: list[tuple[int, ...]],
        directory: Path,
        bound: socket.socket,
        note: Callable[[str], None],
    ) -> None:
        self._asked, self._shares, self._directory, self._note = asked, shares, directory, note
        self._starting: asyncio.Task[None] | None = None
        self._supervisor: Supervisor | None = None
        self._front: ASGIApp | None = None  # made on the event loop
        super().__init__(self._application, asked.settings, Lifecycle(), bound, name="whet-front", listens_later=True)

    @property
    def replicas(self) -> list[Replica]:
        return list(self._supervisor.replicas) if self._supervisor is not None else []

    @property
    def models(self) -> list[dict[str, Any]]:
        """The models that are served, as the first replica describes them."""
        return self.replicas[0].models

    async def _application(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._front is not None
        await self._front(scope, receive, send)

    async def _serve(self, on_ready: Callable[[], None]) -> None:
        fleet = Fleet(len(self._shares))
        settings = self._asked.settings
        self._front = make_front(fleet, settings, self._lifecycle)
        self._supervisor = Supervisor(fleet, self._replica, self._note, drain_s=settings.shutdown_timeout_s)
        self._starting = asyncio.ensure_future(self._supervisor.start())
        try:
            await self._starting
        except asyncio.CancelledError:
            if self._ending is not None:  # asked to end before it was ready
                return
            raise
        listen(self._socket, BACKLOG)
        try:
            await super()._serve(on_ready)
        finally:
            await self._supervisor.stop()

    def _replica(self, number: int) -> Replica:
        settings = self._asked.settings
        inner = self._asked.inner(
            shutdown_timeout_s=_INNER_SHUTDOWN_S, write_timeout_s=_PATIENCE * settings.write_timeout_s
        )
        return Replica(number, self._directory, self._shares[number], inner.as_json(), self._note)

    def _hang_up(self) -> None:
        if self._supervisor is not None and self._starting is not None and self._starting.done():
            self._supervisor.begin_update()

    async def _finish(self) -> None:
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            return
        await super()._finish()
