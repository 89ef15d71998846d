"""When a server takes requests, and how it ends: those that run may finish, for a while; then they are cut."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal, Protocol

from whet.server.http.errors import unavailable

Phase = Literal["loading", "ready", "draining"]


class Running(Protocol):
    """Something that runs for a request."""

    def cut(self) -> None:
        """End it with an error."""


class Lifecycle:
    """One for each server. On the event loop only."""

    def __init__(self) -> None:
        self.phase: Phase = "loading"
        self._running: set[Running] = set()
        self._num_open = 0
        self._is_over = False
        self._idle = asyncio.Event()
        self._idle.set()

    def check_ready(self) -> None:
        """Raises ApiError (503) where no new work is taken."""
        if self.phase == "loading":
            raise unavailable("the model is being loaded")
        if self.phase == "draining":
            raise unavailable("the server is about to end and takes no new requests")

    def ready(self) -> None:
        """Take requests."""
        if self.phase == "loading":
            self.phase = "ready"

    @contextmanager
    def open(self) -> Iterator[None]:
        """For as long as a request is worked on: the end waits for it."""
        self._num_open += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._num_open -= 1
            if not self._num_open:
                self._idle.set()

    def started(self, running: Running) -> None:
        """To be cut if it is not done in time."""
        self._running.add(running)
        if self._is_over:
            running.cut()

    def ended(self, running: Running) -> None:
        """Whether or not it had started."""
        self._running.discard(running)

    async def drain(self, timeout_s: float) -> None:
        """Take no new work, and return once the last request is answered: at the end of its own, or cut."""
        self.phase = "draining"
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        self._is_over = True
        for running in list(self._running):  # those too that nobody waits for: bodies that come to nothing
            running.cut()
