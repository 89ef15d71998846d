"""Read the bodies of requests, however large they are, without delaying other requests."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel

from whet.server.http.body import BODY, content_of
from whet.server.http.lifecycle import Lifecycle
from whet.server.http.request_parsing import SMALL, Prompts, Readers, Served
from whet.server.http.request_parsing_process import ReadingProcess
from whet.server.text import Tokenizer

T = TypeVar("T")

# Up to so many bytes, a body is tokenised on the event loop; a larger one in a thread, as one that a template renders.
AT_ONCE = 2**11
_MOST_THREADS = 2  # threads that tokenise at the same time


@dataclass(frozen=True)
class Read:
    """Hold a parsed body. Its functions raise ApiError if the request cannot be served.

    Attributes:
        body: An instance of the requested kind. A large one has a short placeholder for its prompts.
        answer: Returns the answer to POST /tokenize or /detokenize, as JSON.
    """

    body: Any
    num_prompts: int
    prompts: Callable[[], Awaitable[Prompts]]
    answer: Callable[[], Awaitable[bytes]]


class Intake:
    """Read small bodies in this process and large ones in the reading process. Use it on the event loop only.

    Args:
        lifecycle: The server's lifecycle. It cuts the reading of large bodies when the server shuts down.
        check_room: Raises ApiError if the engine's queue is full. It is called before a large body is read, so that no
            client waits for the reading process only to be refused.
    """

    def __init__(
        self,
        models: Sequence[tuple[Tokenizer, Served]],
        artefacts: Sequence[str],
        lifecycle: Lifecycle,
        check_room: Callable[[], None],
    ) -> None:
        self._readers = Readers(models, artefacts)
        self._process = ReadingProcess(models, artefacts)
        self._lifecycle = lifecycle
        self._check_room = check_room
        self._threads = asyncio.Semaphore(_MOST_THREADS)

    @asynccontextmanager
    async def reading(self, request: Request, kind: type[BaseModel]) -> AsyncIterator[Read]:
        """Read a request's body as an instance of `kind`. Leave the block once its prompts or answer have been read."""
        content = await content_of(request)
        content_type = request.headers.get("content-type", "")
        if len(content) <= SMALL:
            release(request)
            body, reader = self._readers.parse(kind, content, content_type)
            done = partial(self._done, body, len(content) <= AT_ONCE and not reader.renders(body))
            num_prompts = len(getattr(body, "prompts", "1"))
            yield Read(body, num_prompts, partial(done, reader.prompts), partial(done, reader.answer))
            return
        self._check_room()
        async with self._process as process:
            self._lifecycle.started(process.cut)
            try:
                body, num_prompts = await process.parse(kind, content, content_type)
                del content
                release(request)
                yield Read(body, num_prompts, process.prompts, process.answer)
            finally:
                self._lifecycle.ended(process.cut)

    async def close(self) -> None:
        await self._process.close()

    async def _done(self, body: Any, is_quick: bool, work: Callable[[Any], T]) -> T:
        if is_quick:
            return work(body)
        async with self._threads:
            return await asyncio.to_thread(work, body)


async def unless_long(size: int, most: int, work: Callable[..., T], *arguments: Any) -> T:
    """Return what `work` returns. It runs on the event loop, or in a thread where its size is more than `most`."""
    return work(*arguments) if size <= most else await asyncio.to_thread(work, *arguments)


def release(request: Request) -> None:
    """Report that the bytes of the request's body are no longer in memory."""
    if BODY in request.scope:
        request.scope[BODY].release()
