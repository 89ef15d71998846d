"""Requests sent at their time, whatever the server does: an open loop.

Who sends the next request only after an answer (a closed loop) slows down with the server, and never sees the queue
that its users would.
Source: Schroeder, Wierman and Harchol-Balter, "Open Versus Closed: A Cautionary Tale" (NSDI 2006).
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from whet.load_test.client import clock
from whet.load_test.prompts import Prompts
from whet.load_test.record import Answer, Failure, Record
from whet.load_test.trace import Arrival

Progress = Callable[[int, int], None]
"""Called with the numbers of requests that have ended, and that there are."""

_LEAD_S = 0.05  # before the first request, so that it is not late


class Server(Protocol):
    """What answers: a CompletionClient, or a stand-in."""

    async def complete(self, token_ids: Sequence[int], num_output: int) -> Answer: ...


@dataclass
class Replay:
    """What became of the requests, in the order of their planned times. is_interrupted: by Ctrl-C, before all
    had been sent and answered."""

    records: list[Record] = field(default_factory=list)
    is_interrupted: bool = False


async def replay(
    server: Server,
    arrivals: Sequence[Arrival],
    prompts: Prompts,
    *,
    max_in_flight: int | None = None,
    time_limit_s: float | None = None,
    on_progress: Progress | None = None,
) -> Replay:
    """Send every request at its time and wait for the answers. Cancelled (Ctrl-C), it returns what there is.

    max_in_flight: no more than so many at once, so that the loop is no longer open; the others wait for their turn, in
    order. time_limit_s: for the answers, from when the last request was due; those still under way are ended.
    """
    run = _Run(server, prompts, max_in_flight, on_progress or (lambda num_ended, num_planned: None), len(arrivals))
    tasks: list[asyncio.Task[Record]] = []
    is_interrupted = False
    try:
        for index, arrival in enumerate(arrivals):
            await asyncio.sleep(max(0.0, run.start_s + arrival.at_s - clock()))
            tasks.append(asyncio.create_task(run.send(index, arrival)))
        await asyncio.wait(tasks, timeout=time_limit_s)
    except asyncio.CancelledError:
        is_interrupted = True
    for task in tasks:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    return Replay([_record(arrival, end) for arrival, end in zip(arrivals, ended, strict=False)], is_interrupted)


def _record(arrival: Arrival, end: Record | BaseException) -> Record:
    """Of a task: one that was cancelled before its first line has none of its own."""
    if isinstance(end, asyncio.CancelledError):
        return Record(arrival, arrival.at_s, arrival.at_s, failure=Failure.UNFINISHED)
    if isinstance(end, BaseException):
        raise end
    return end


class _Run:
    """One replay as it goes."""

    def __init__(
        self, server: Server, prompts: Prompts, max_in_flight: int | None, on_progress: Progress, num_planned: int
    ) -> None:
        self.start_s = clock() + _LEAD_S
        self._server, self._prompts = server, prompts
        self._is_capped = max_in_flight is not None
        self._turn: AbstractAsyncContextManager[object] = (
            asyncio.Semaphore(max_in_flight) if max_in_flight is not None else nullcontext()
        )
        self._on_progress = on_progress
        self._num_planned, self._num_ended = num_planned, 0

    async def send(self, index: int, arrival: Arrival) -> Record:
        """Never raises: a request that is cancelled has a record that says so."""
        sent_s = arrival.at_s
        try:
            async with self._turn:
                token_ids = self._prompts.token_ids(index, arrival.num_input)
                sent_s = clock() - self.start_s
                answer = await self._server.complete(token_ids, arrival.num_output)
        except asyncio.CancelledError:
            return Record(arrival, arrival.at_s, sent_s, failure=Failure.UNFINISHED)
        finally:
            self._num_ended += 1
            self._on_progress(self._num_ended, self._num_planned)
        sent_s = answer.sent_s - self.start_s
        return Record(
            arrival,
            start_s=sent_s if self._is_capped else arrival.at_s,
            sent_s=sent_s,
            token_s=tuple(time_s - self.start_s for time_s in answer.token_s),
            num_output=answer.num_output,
            has_usage=answer.has_usage,
            failure=answer.failure,
            detail=answer.detail,
        )
