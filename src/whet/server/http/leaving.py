"""End the work on an answer when the client that waits for it leaves."""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import TypeVar

from starlette.responses import Response
from starlette.types import Receive

T = TypeVar("T")

GONE = 499  # the status where the client has left; nobody reads it


async def answered(receive: Receive, work: Awaitable[Response]) -> Response:
    """Return the answer that `work` makes. If the client leaves first, cancel the work."""
    return await unless_gone(receive, work) or Response(status_code=GONE)


async def unless_gone(receive: Receive, work: Awaitable[T]) -> T | None:
    """Return the result of `work`. If the client leaves first, cancel the work and return None."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, watching):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
