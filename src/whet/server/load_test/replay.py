"""Send requests at their planned times, whatever the server does: an open loop.

A closed loop sends the next request only after an answer. It slows down with the server, and so never sees the queue
that real users would wait in.

Source: Schroeder, Wierman and Harchol-Balter, "Open Versus Closed: A Cautionary Tale" (NSDI 2006).
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from whet.server.load_test.client import clock
from whet.server.load_test.prompts import Prompts
from whet.server.load_test.record import Answer, Failure, Record
from whet.server.load_test.trace import Arrival

Progress = Callable[[int, int], None]
"""A callback that gets the number of requests that have ended, and the number of all requests."""

_LEAD_S = 0.05  # time before the first request, so that it is not late


class Server(Protocol):
    """Answer requests: a CompletionClient, or a substitute in tests."""

    async def complete(self, token_ids: Sequence[int], num_output: int) -> Answer:
        """See CompletionClient."""


@dataclass
class Replay:
    """Hold the outcome of a replay, with the requests in the order of their planned times.

    `is_interrupted` says whether Ctrl-C ended it before all requests were sent and answered.
    """

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
    """Send every request at its time, and wait for the answers. If cancelled (Ctrl-C), return the outcome so far.

    Args:
        arrivals: The requests, in the order of their times.
        max_in_flight: The most requests at the same time; others wait in order. The loop is then no longer open.
        time_limit_s: How many seconds to wait for answers after the last request was due. Others are then ended.
    """
    start_s = clock() + _LEAD_S
    turn = nullcontext() if max_in_flight is None else asyncio.Semaphore(max_in_flight)
    num_ended = 0

    async def send(index: int, arrival: Arrival) -> Record:
        """Send one request, and return its record. If it is cancelled, its record says so; nothing is raised."""
        nonlocal num_ended
        sent_s = arrival.at_s
        try:
            async with turn:
                token_ids = prompts.token_ids(index, arrival.num_input)
                sent_s = clock() - start_s
                answer = await server.complete(token_ids, arrival.num_output)
        except asyncio.CancelledError:
            return Record(arrival, arrival.at_s, sent_s, failure=Failure.UNFINISHED)
        finally:
            num_ended += 1
            if on_progress is not None:
                on_progress(num_ended, len(arrivals))
        return _record(arrival, answer, start_s, is_capped=max_in_flight is not None)

    tasks: list[asyncio.Task[Record]] = []
    is_interrupted = False
    try:
        for index, arrival in enumerate(arrivals):
            await asyncio.sleep(max(0.0, start_s + arrival.at_s - clock()))
            tasks.append(asyncio.create_task(send(index, arrival)))
        await asyncio.wait(tasks, timeout=time_limit_s)
    except asyncio.CancelledError:
        is_interrupted = True
    for task in tasks:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    return Replay([_outcome(arrival, end) for arrival, end in zip(arrivals, ended, strict=False)], is_interrupted)


def _record(arrival: Arrival, answer: Answer, began_s: float, *, is_capped: bool) -> Record:
    sent_s = answer.sent_s - began_s
    return Record(
        arrival,
        start_s=sent_s if is_capped else arrival.at_s,
        sent_s=sent_s,
        token_s=tuple(time_s - began_s for time_s in answer.token_s),
        num_output=answer.num_output,
        has_usage=answer.has_usage,
        failure=answer.failure,
        detail=answer.detail,
    )


def _outcome(arrival: Arrival, end: Record | BaseException) -> Record:
    """Return the record of a task. A task that was cancelled before it began has none of its own, so one is made."""
    if isinstance(end, asyncio.CancelledError):
        return Record(arrival, arrival.at_s, arrival.at_s, failure=Failure.UNFINISHED)
    if isinstance(end, BaseException):
        raise end
    return end
