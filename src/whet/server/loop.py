"""Run the engine's thread: it takes requests, runs steps and hands out deltas until it is closed."""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

from whet.errors import EngineClosed, QueueFull, RequestError, named_reason
from whet.server.batching.worker import Worker
from whet.server.completion import Delta
from whet.server.delivery import AsyncBridge, OnDelta, give
from whet.server.request import Request, Status
from whet.server.stats import Meter
from whet.server.stepper import Progress, Stepper

Found = TypeVar("Found")

_LOG = logging.getLogger("whet")
_ABORT_S = 10.0  # how long `drain` waits for aborted requests: they end after the current step


@dataclass(slots=True)
class _Entry:
    request: Request
    on_delta: OnDelta


@dataclass(slots=True)
class _Asked:
    """Hold what the engine's thread was asked to do since its last step."""

    entries: list[_Entry] = field(default_factory=list)
    aborts: set[str] = field(default_factory=set)
    calls: list[Callable[[], None]] = field(default_factory=list)  # they raise nothing
    is_last: bool = False


class _Inbox:
    """Collect requests to begin and to abort, and calls. Work is due at once while the scheduler has any too."""

    def __init__(self, has_work: Callable[[], bool]) -> None:
        self.asked, self._has_work = _Asked(), has_work

    def due_s(self) -> float | None:
        asked = self.asked
        return 0.0 if asked.entries or asked.aborts or asked.calls or self._has_work() else None

    def take(self, now_s: float, *, everything: bool = False) -> _Asked:
        asked, self.asked = self.asked, _Asked()
        asked.is_last = everything
        return asked


class Reservation:
    """Hold a place in the queue while a request is being prepared. The end of a `with` block releases an unused one."""

    def __init__(self, loop: "EngineLoop", arrival_s: float) -> None:
        self.arrival_s = arrival_s
        self.is_open = True
        self._loop = loop

    def release(self) -> None:
        """Release the place. If it was used or released before, do nothing."""
        self._loop.release(self)

    def __enter__(self) -> "Reservation":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class EngineLoop:
    """Run a stepper on a thread that alone may use it. `capacity` is how many requests may run and wait together."""

    def __init__(self, stepper: Stepper, capacity: int) -> None:
        self.stepper = stepper
        self.meter = Meter()
        self.capacity = capacity
        self._inbox = _Inbox(lambda: stepper.scheduler.has_work)
        self._worker = Worker("whet-engine", self._inbox, self._work, failed=self._start_afresh, clock=time.monotonic)
        self._changed = self._worker.changed  # guards all fields below, except `_entries`, which only the thread uses
        self._unfinished: set[str] = set()  # ids of requests
        self._num_reserved = 0
        self._is_draining = False
        self._broken: str | None = None
        self._entries: dict[str, _Entry] = {}
        self._bridge = AsyncBridge(self.abort)
        self._worker.start()

    @property
    def num_inbox(self) -> int:
        """Return the number of requests that arrived since the last step began."""
        return len(self._inbox.asked.entries)

    @property
    def is_open(self) -> bool:
        return not (self._is_draining or self._worker.is_stopping or self._broken)

    def reserve(self) -> Reservation:
        """Reserve a place in the queue for a request that is still being prepared.

        Raises:
            QueueFull: Too many requests are waiting.
            EngineClosed: No more requests are taken.
        """
        with self._changed:
            self._check_open()
            self._check_room()
            self._num_reserved += 1
        return Reservation(self, time.monotonic())

    def release(self, reservation: Reservation) -> None:
        with self._changed:
            self._use(reservation)

    def submit(
        self,
        request: Request,
        on_delta: OnDelta,
        reservation: Reservation | None = None,
        *,
        asyncio_loop: asyncio.AbstractEventLoop | None = None,
        is_limited: bool = True,
    ) -> None:
        """Queue a request; see Engine.submit. With `is_limited`, refuse it if the queue is full and it has no place.

        Raises:
            EngineClosed: No more requests are taken.
            QueueFull: Too many requests are waiting.
            RequestError: A request with this id is present already.
        """
        if asyncio_loop is not None:
            on_delta = self._bridge.to_loop(asyncio_loop, on_delta)
        with self._changed:
            self._check_open()
            if request.id in self._unfinished:
                raise RequestError(f"a request {request.id} is there already: give each an id of its own")
            if reservation is not None and self._use(reservation):
                request.arrival_s = reservation.arrival_s
            else:
                if is_limited:
                    self._check_room()
                request.arrival_s = time.monotonic()
            self._unfinished.add(request.id)
            self._inbox.asked.entries.append(_Entry(request, on_delta))
            self._changed.notify_all()

    def abort(self, request_id: str) -> None:
        """End a request after the current step. If it has ended already, or is unknown, nothing happens."""
        with self._changed:
            self._inbox.asked.aborts.add(request_id)
            self._changed.notify_all()

    def look(self, request_id: str, look: Callable[[Request], Found]) -> Found:
        """Return what `look` finds of a running request, whose state is in its row.

        The engine's thread calls it between two steps.

        Raises:
            RequestError: No such request runs, or it is asked for from a callback on the engine's thread.
            EngineClosed: The engine has been closed.
        """
        if self._worker.is_current:
            raise RequestError("the engine's own thread cannot wait for itself: look from another thread")

        def found() -> Found:
            entry = self._entries.get(request_id)
            if entry is None or entry.request.status is not Status.RUNNING:
                raise RequestError(f"no request {request_id} is running: it waits, has ended, or is unknown")
            return look(entry.request)

        return self._asked(found).result()

    def ping(self, timeout_s: float) -> None:
        """Wait until the engine's thread has turned to this call, between two steps.

        Raises:
            TimeoutError: It has not within `timeout_s` seconds.
            EngineClosed: The engine has been closed.
        """
        self._asked(lambda: None).result(timeout_s)

    def _asked(self, call: Callable[[], Found]) -> "Future[Found]":
        """Let the engine's thread call a function between two steps, and return its result to come."""
        found: Future[Found] = Future()

        def answer() -> None:
            try:
                found.set_result(call())
            except Exception as error:  # noqa: BLE001 - it is the caller's
                found.set_exception(error)

        with self._changed:
            if self._worker.is_stopping:
                raise EngineClosed("the engine is closed")
            self._inbox.asked.calls.append(answer)
            self._changed.notify_all()
        return found

    def drain(self, timeout_s: float) -> None:
        """Take no more requests, wait up to `timeout_s` seconds for the present ones, and abort the rest."""
        with self._changed:
            self._is_draining = True
            if not self._changed.wait_for(lambda: not self._unfinished, timeout_s):
                self._inbox.asked.aborts.update(self._unfinished)
                self._changed.notify_all()
                self._changed.wait_for(lambda: not self._unfinished, _ABORT_S)

    def break_off(self, message: str) -> None:
        """Take no more requests, since the model can compute nothing any more. Those that are present fail in a step.

        The message is that of the errors which later requests get.
        """
        with self._changed:
            self._broken = message

    def close(self) -> None:
        """Abort all requests and end the thread."""
        self._worker.stop()

    def _check_open(self) -> None:
        if self._broken is not None:
            raise EngineClosed(self._broken)
        if not self.is_open:
            raise EngineClosed("the engine is shutting down and takes no more requests")

    def _check_room(self) -> None:
        present = len(self._unfinished) + self._num_reserved
        if present >= self.capacity:
            raise QueueFull(f"{present} requests are running or waiting, and no more are taken: try again later")

    def _use(self, reservation: Reservation) -> bool:
        """Use up a reservation, and return whether it still held a place."""
        was_open, reservation.is_open = reservation.is_open, False
        self._num_reserved -= was_open
        return was_open

    def _work(self, asked: _Asked) -> None:
        """Begin and abort requests as asked, and run a step. In the last call, abort all requests instead."""
        for entry in asked.entries:
            self._entries[entry.request.id] = entry
            self.stepper.scheduler.add(entry.request)
        for call in asked.calls:
            call()
        aborts = set(self._entries) if asked.is_last else asked.aborts
        found = [self._entries[request_id] for request_id in aborts if request_id in self._entries]
        self._hand_out([self.stepper.abort(entry.request) for entry in found])
        if not asked.is_last and self.stepper.scheduler.has_work:
            news = self.stepper.step()
            self.meter.stepped(time.monotonic(), sum(len(one.delta.token_ids) for one in news))
            self._hand_out(news)

    def _hand_out(self, news: list[Progress]) -> None:
        ended = []
        is_watched = bool(self.meter.observers)
        for request, delta in news:
            if is_watched and delta.token_ids:
                self._time_tokens(request, delta)
            if delta.finish_reason is not None:
                ended.append(request.id)
                self.meter.finished(delta.e2e_s, delta.queue_s, delta.finish_reason)
            give(self._entries[request.id].on_delta, delta, self.abort)
        self._pass_on(ended)

    def _time_tokens(self, request: Request, delta: Delta) -> None:
        now, before = request.arrival_s + delta.e2e_s, request.last_token_s
        request.last_token_s = now
        if before is None:
            self.meter.tell(lambda observer: observer.first_token(delta.ttft_s or 0.0))
            return
        each_s = (now - before) / len(delta.token_ids)
        for _ in delta.token_ids:
            self.meter.tell(lambda observer: observer.inter_token(each_s))

    def _pass_on(self, ended: list[str]) -> None:
        """Send the collected deltas to asyncio loops, and forget the requests that have ended."""
        self._bridge.deliver()
        if ended:
            for request_id in ended:
                del self._entries[request_id]
            with self._changed:
                self._unfinished.difference_update(ended)
                self._changed.notify_all()

    def _start_afresh(self, error: Exception) -> None:
        """End all requests with an error and reset the scheduler, after the engine itself has failed."""
        _LOG.error("the engine failed; all requests end", exc_info=error)
        message = f"the engine failed: {named_reason(error)}"
        self.stepper.scheduler.reset()
        for request_id, entry in self._entries.items():
            self.meter.ended["error"] += 1
            give(entry.on_delta, Delta(request_id, finish_reason="error", error=message), self.abort)
        self._pass_on(list(self._entries))
