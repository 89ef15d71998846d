"""The engine's thread: takes requests in, runs steps, hands deltas out, until it is closed."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from whet.batching.worker import Worker
from whet.errors import EngineClosed, QueueFull, RequestError, reason
from whet.server.completion import Delta
from whet.server.delivery import AsyncBridge, OnDelta, give
from whet.server.request import Request
from whet.server.stats import Meter
from whet.server.stepper import Progress, Stepper

_LOG = logging.getLogger("whet")
_ABORT_S = 10.0  # a step may last as long before aborted requests are seen to be gone


@dataclass(slots=True)
class _Entry:
    request: Request
    on_delta: OnDelta


@dataclass(slots=True)
class _Asked:
    """What was asked of the engine's thread since its last step."""

    entries: list[_Entry]
    aborts: set[str]
    is_last: bool


class _Inbox:
    """Requests to begin and to abort. There is always work to do while the scheduler has some."""

    def __init__(self, has_work: Callable[[], bool]) -> None:
        self.entries: list[_Entry] = []
        self.aborts: set[str] = set()
        self._has_work = has_work

    def due_s(self) -> float | None:
        """See Inbox."""
        return 0.0 if self.entries or self.aborts or self._has_work() else None

    def take(self, now_s: float, *, everything: bool = False) -> _Asked:
        """See Inbox."""
        asked = _Asked(self.entries, self.aborts, is_last=everything)
        self.entries, self.aborts = [], set()
        return asked


class Reservation:
    """A place in the queue, taken before the work of preparing a request; released unless it was used."""

    def __init__(self, loop: "EngineLoop", arrival_s: float) -> None:
        self.arrival_s = arrival_s
        self.is_open = True
        self._loop = loop

    def release(self) -> None:
        """Give the place back. After it was used, or released, this does nothing."""
        self._loop.release(self)

    def __enter__(self) -> "Reservation":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


class EngineLoop:
    """Owns the stepper, which nobody else may touch once it runs. capacity: requests, running and waiting together."""

    def __init__(self, stepper: Stepper, capacity: int) -> None:
        self.stepper = stepper
        self.meter = Meter()
        self.capacity = capacity
        self._inbox = _Inbox(lambda: stepper.scheduler.has_work)
        self._worker = Worker("whet-engine", self._inbox, self._work, failed=self._start_afresh, clock=time.monotonic)
        self._changed = self._worker.changed  # guards all below, but for the entries, which are the thread's
        self._unfinished: set[str] = set()  # the requests' ids
        self._num_reserved = 0
        self._is_draining = False
        self._entries: dict[str, _Entry] = {}
        self._bridge = AsyncBridge(self.abort)
        self._worker.start()

    @property
    def num_inbox(self) -> int:
        """Requests that came since the last step began."""
        return len(self._inbox.entries)

    @property
    def is_open(self) -> bool:
        """Whether requests are taken."""
        return not (self._is_draining or self._worker.is_stopping)

    def reserve(self) -> Reservation:
        """A place for a request that is still to be made. Raises QueueFull, EngineClosed."""
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
        """Queue a request.

        Args:
            request: What to run.
            on_delta: Is called with each piece of the output, and must be quick.
            reservation: The place in the queue that the request takes, if one was reserved.
            asyncio_loop: Where on_delta is called; None: on the engine's thread.
            is_limited: Refuse the request if too many wait and it comes without a reservation.

        Raises:
            EngineClosed: No more requests are taken.
            QueueFull: Too many wait.
            RequestError: There is a request of this id.
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
            self._inbox.entries.append(_Entry(request, on_delta))
            self._changed.notify_all()

    def abort(self, request_id: str) -> None:
        """End a request soon. One that has ended, or never was, is none of its business."""
        with self._changed:
            self._inbox.aborts.add(request_id)
            self._changed.notify_all()

    def drain(self, timeout_s: float) -> None:
        """Take no more requests; give those that are there so long to end, and abort the rest."""
        with self._changed:
            self._is_draining = True
            if not self._changed.wait_for(lambda: not self._unfinished, timeout_s):
                self._inbox.aborts.update(self._unfinished)
                self._changed.notify_all()
                self._changed.wait_for(lambda: not self._unfinished, _ABORT_S)

    def close(self) -> None:
        """Abort all requests and end the thread."""
        self._worker.stop()

    def _check_open(self) -> None:
        if not self.is_open:
            raise EngineClosed("the engine is shutting down and takes no more requests")

    def _check_room(self) -> None:
        present = len(self._unfinished) + self._num_reserved
        if present >= self.capacity:
            raise QueueFull(f"{present} requests are running or waiting, and no more are taken: try again later")

    def _use(self, reservation: Reservation) -> bool:
        """Whether the reservation still held a place; it does not any more."""
        was_open, reservation.is_open = reservation.is_open, False
        self._num_reserved -= was_open
        return was_open

    def _work(self, asked: _Asked) -> None:
        """Take in what was asked, and run a step. The last time, abort everything instead."""
        for entry in asked.entries:
            self._entries[entry.request.id] = entry
            self.stepper.scheduler.add(entry.request)
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
            self.meter.first_token(delta.ttft_s or 0.0)
        else:
            self.meter.inter_token(now - before, len(delta.token_ids))

    def _pass_on(self, ended: list[str]) -> None:
        """Send what readers in asyncio get, and strike off what has ended."""
        self._bridge.deliver()
        if ended:
            for request_id in ended:
                del self._entries[request_id]
            with self._changed:
                self._unfinished.difference_update(ended)
                self._changed.notify_all()

    def _start_afresh(self, error: Exception) -> None:
        """Something in the engine itself failed: all requests end with that, and the books are begun anew."""
        _LOG.error("the engine failed; all requests end", exc_info=error)
        message = f"the engine failed: {type(error).__name__}: {reason(error)}"
        self.stepper.scheduler.reset()
        for request_id, entry in self._entries.items():
            self.meter.ended["error"] += 1
            give(entry.on_delta, Delta(request_id, finish_reason="error", error=message), self.abort)
        self._pass_on(list(self._entries))
