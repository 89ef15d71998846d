"""Reads the bodies of requests without holding up what else the server does, however large they are."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from fastapi import Request
from pydantic import BaseModel
from starlette.requests import ClientDisconnect

from whet.server.http.body import BODY
from whet.server.http.errors import invalid
from whet.server.http.lifecycle import Lifecycle
from whet.server.http.reading import SMALL, Prompts, Reader, Readers, Served
from whet.server.http.reading_process import ReadingProcess
from whet.server.text import Tokenizer

_AT_ONCE = 2**11  # bytes of a body whose texts are tokenised on the event loop; others in a thread
_MOST_THREADS = 2  # that tokenise


class Read(Protocol):
    """A body that has been parsed. Every method raises ApiError where the request cannot be served."""

    @property
    def body(self) -> Any:
        """The body, of the kind that was asked for; a large body has something short in place of its prompts."""

    @property
    def num_prompts(self) -> int:
        """How many prompts there are."""

    async def prompts(self) -> Prompts:
        """Tokenise the prompts."""

    async def answer(self) -> bytes:
        """The answer to a request about tokens, as JSON."""


class Intake:
    """Reads bodies, small ones here and large ones in a process of their own. On the event loop only.

    check_room raises ApiError where the queue is full: nobody waits for the other process only to be told so.
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
        """Read a request's body as a `kind`. Leave the block when its prompts are no longer asked for."""
        content = await content_of(request)
        content_type = request.headers.get("content-type", "")
        if len(content) <= SMALL:
            release(request)
            body = self._readers.parse(kind, content, content_type)
            reader = self._readers.of(getattr(body, "model", None))
            yield _ReadHere(reader, body, self._threads, len(content) <= _AT_ONCE)
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
        """End the other process."""
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


async def content_of(request: Request) -> bytes:
    """Return all of a request's body. Raises ApiError where the client leaves, or sends too much or too slowly."""
    try:
        return b"".join([part async for part in request.stream()])
    except ClientDisconnect:
        raise invalid("the client left before its request was whole") from None


def release(request: Request) -> None:
    """The bytes of this body are held no longer."""
    if BODY in request.scope:
        request.scope[BODY].release()
