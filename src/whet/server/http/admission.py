"""Read the bodies of requests, however large they are, without delaying other requests."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from fastapi import Request
from pydantic import BaseModel
from starlette.requests import ClientDisconnect

from whet.server.http.body import BODY
from whet.server.http.errors import invalid
from whet.server.http.lifecycle import Lifecycle
from whet.server.http.request_parsing import SMALL, Prompts, Reader, Readers, Served
from whet.server.http.request_parsing_process import ReadingProcess
from whet.server.text import Tokenizer

T = TypeVar("T")

# Up to so many bytes, a body is tokenised on the event loop; a larger one in a thread, as one that a template renders.
AT_ONCE = 2**11
_MOST_THREADS = 2  # threads that tokenise at the same time


class Read(Protocol):
    """Stand for a parsed body. Every method raises ApiError if the request cannot be served."""

    @property
    def body(self) -> Any:
        """Return the body, an instance of the requested kind. A large one has a short placeholder for its prompts."""

    @property
    def num_prompts(self) -> int:
        """Return the number of prompts."""

    async def prompts(self) -> Prompts:
        """Tokenise the prompts."""

    async def answer(self) -> bytes:
        """Return the answer to POST /tokenize or /detokenize, as JSON."""


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
            body = self._readers.parse(kind, content, content_type)
            reader = self._readers.of(getattr(body, "model", None))
            yield _ReadHere(reader, body, self._threads, len(content) <= AT_ONCE and not reader.renders(body))
            return
        self._check_room()
        async with self._process as process:
            self._lifecycle.started(process)
            try:
                body, num_prompts = await process.parse(kind, content, content_type)
                del content
                release(request)
                yield _ReadThere(process, body, num_prompts)
            finally:
                self._lifecycle.ended(process)

    async def close(self) -> None:
        """End the reading process."""
        await self._process.close()


@dataclass(frozen=True)
class _ReadHere:
    reader: Reader
    body: Any
    threads: asyncio.Semaphore
    is_quick: bool

    @property
    def num_prompts(self) -> int:
        return len(getattr(self.body, "prompts", "1"))

    async def prompts(self) -> Prompts:
        if self.is_quick:
            return self.reader.prompts(self.body)
        async with self.threads:
            return await asyncio.to_thread(self.reader.prompts, self.body)

    async def answer(self) -> bytes:
        if self.is_quick:
            return self.reader.answer(self.body)
        async with self.threads:
            return await asyncio.to_thread(self.reader.answer, self.body)


@dataclass(frozen=True)
class _ReadThere:
    process: ReadingProcess
    body: Any
    num_prompts: int

    async def prompts(self) -> Prompts:
        return await self.process.prompts()

    async def answer(self) -> bytes:
        return await self.process.answer()


async def unless_long(size: int, most: int, work: Callable[..., T], *arguments: Any) -> T:
    """Return what `work` returns. It runs on the event loop, or in a thread where its size is more than `most`."""
    return work(*arguments) if size <= most else await asyncio.to_thread(work, *arguments)


async def content_of(request: Request) -> bytes:
    """Return all of a request's body.

    Raises:
        ApiError: The client leaves, or sends too much or too slowly.
    """
    try:
        return b"".join([part async for part in request.stream()])
    except ClientDisconnect:
        raise invalid("the client left before its request had arrived completely") from None


def release(request: Request) -> None:
    """Report that the bytes of the request's body are no longer in memory."""
    if BODY in request.scope:
        request.scope[BODY].release()
