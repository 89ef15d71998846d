"""Track whether a server takes requests, and shut it down."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Literal

from whet.server.http.errors import unavailable

Phase = Literal["loading", "ready", "draining"]


class Lifecycle:
    """Hold the phase of one server and its running work. Use it on the event loop only."""

    def __init__(self) -> None:
        self.phase: Phase = "loading"
        self._cuts: set[Callable[[], None]] = set()
        self._num_open = 0
        self._is_over = False
        self._idle = asyncio.Event()
        self._idle.set()

    def check_ready(self) -> None:
        """Raise ApiError (503) if the model is being loaded, or if the server shuts down."""
        if self.phase == "loading":
            raise unavailable("the model is being loaded; send this request again in a while")
        if self.phase == "draining":
            raise unavailable("the server is shutting down and takes no new requests; send this one again later")

    def ready(self) -> None:
        """Take requests from now on."""
        if self.phase == "loading":
            self.phase = "ready"

    @contextmanager
    def open(self) -> Iterator[None]:
        """Count a request as being worked on while the block runs. `drain` waits for it."""
        self._num_open += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._num_open -= 1
            if not self._num_open:
                self._idle.set()

    def started(self, cut: Callable[[], None]) -> None:
        """Add work on a request. `drain` calls `cut`, which ends it with an error, if it has not ended in time."""
        self._cuts.add(cut)
        if self._is_over:
            cut()

    def ended(self, cut: Callable[[], None]) -> None:
        """Remove work that has ended. It need not have been added."""
        self._cuts.discard(cut)

    async def drain(self, timeout_s: float) -> None:
        """Take no new requests, and wait until the running ones are answered. Cut those that run after `timeout_s`."""
        self.phase = "draining"
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        self._is_over = True
        for cut in list(self._cuts):  # also bodies that still arrive for requests without any work
            cut()
