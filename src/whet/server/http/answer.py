"""Turn the engine's deltas into one answer or a stream of events, for both kinds of completion.

Source: html.spec.whatwg.org, "Server-sent events"; platform.openai.com/docs/api-reference/chat-streaming.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator
from contextlib import aclosing, suppress
from typing import Any, Protocol, TypeVar

from fastapi import Response
from starlette.types import Receive, Scope, Send

from whet.server.completion import Delta
from whet.server.http.errors import ApiError
from whet.server.http.generation import Generation

T = TypeVar("T")

_DONE = b"data: [DONE]\n\n"
GONE = 499  # the status where the client has left; nobody reads it
_TURN_S = 0.002  # how long JSON is written before other tasks on the event loop may run
_GROUP = 16  # list entries written at once; log-probabilities with 20 alternatives each take half a millisecond
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class Usage:
    """Count the tokens that one request read and generated. A prompt with several choices counts once."""

    def __init__(self, num_choices: int) -> None:
        self._num_choices = num_choices  # for each prompt
        self._prompts: dict[int, int] = {}
        self._cached: dict[int, int] = {}
        self._num_generated = 0

    def add(self, choice: int, delta: Delta, num_tokens: int) -> None:
        """Count `num_tokens` generated tokens, and note the prompt tokens that the delta reports."""
        prompt = choice // self._num_choices
        self._prompts[prompt] = delta.num_prompt_tokens
        self._cached[prompt] = max(self._cached.get(prompt, 0), delta.num_cached_tokens)
        self._num_generated += num_tokens

    def as_json(self) -> dict[str, Any]:
        """Return the counts in the form of OpenAI's `usage` field."""
        num_prompt = sum(self._prompts.values())
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": self._num_generated,
            "total_tokens": num_prompt + self._num_generated,
            "prompt_tokens_details": {"cached_tokens": sum(self._cached.values())},
        }


class Writer(Protocol):
    """Write one kind of answer to one request.

    Call `add` for every delta. It returns the chunks of a stream. For an answer in one piece, call `whole` at the end.
    """

    def add(self, choice: int, delta: Delta) -> list[dict[str, Any]]:
        """Take in a delta of a choice, and return the chunks of the stream that follow from it. There may be none."""

    def last_chunk(self) -> dict[str, Any] | None:
        """Return the chunk with the token usage that ends a stream, or None if the request did not ask for it."""

    def whole(self) -> dict[str, Any]:
        """Return the whole answer. Call it once every choice has ended."""


async def whole(generation: Generation, writer: Writer, receive: Receive) -> Response:
    """Wait until every choice has ended, and return the answer. If the client leaves first, abort the generation."""

    async def collect() -> Response:
        has_logprobs = False
        async for news in generation.deltas():
            for choice, delta in news:
                has_logprobs = has_logprobs or bool(delta.logprobs or delta.prompt_logprobs)
                writer.add(choice, delta)
                await _let_others(delta)
        content = writer.whole()
        written = await json_in_turns(content) if has_logprobs else _json(content)
        return Response(written, media_type="application/json")

    try:
        return await unless_gone(receive, collect()) or Response(status_code=GONE)
    finally:
        generation.close()


class EventStream(Response):
    """Send events as they are generated. An error before the first event is answered with an HTTP error status."""

    def __init__(self, generation: Generation, writer: Writer) -> None:
        super().__init__(media_type="text/event-stream", headers=_STREAM_HEADERS)
        del self.headers["content-length"]
        self._generation = generation
        self._writer = writer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream, as an ASGI application. If the client leaves, abort the generation."""
        try:
            await unless_gone(receive, self._send(send))
        finally:
            self._generation.close()

    async def _send(self, send: Send) -> bool:
        async with aclosing(_events(self._generation, self._writer)) as events:
            has_started = False
            async for content in events:
                if not has_started:
                    has_started = True
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                await send({"type": "http.response.body", "body": content, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return True


def json_response(content: object) -> Response:
    """Return a value as a JSON response. FastAPI's own is slower, since it inspects every value first."""
    return Response(_json(content), media_type="application/json")


async def _events(generation: Generation, writer: Writer) -> AsyncGenerator[bytes, None]:
    has_started = False
    try:
        async for content in _chunks(generation, writer):
            has_started = True
            yield content
    except ApiError as error:
        if not has_started:
            raise
        yield _event(error.content())
    yield _DONE


async def _chunks(generation: Generation, writer: Writer) -> AsyncIterator[bytes]:
    """Yield all events that are waiting, in one piece. A slow client so gets fewer and larger pieces."""
    async for news in generation.deltas():
        events: list[bytes] = []
        for choice, delta in news:
            events.extend(map(_event, writer.add(choice, delta)))
            await _let_others(delta)
        if events:
            yield b"".join(events)
    if (last := writer.last_chunk()) is not None:
        yield _event(last)


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
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


async def _let_others(delta: Delta) -> None:
    """Let other tasks on the event loop run: the log-probabilities of a whole prompt take milliseconds to write."""
    if delta.prompt_logprobs is not None:
        await asyncio.sleep(0)


async def json_in_turns(content: object) -> bytes:
    """Return the same bytes as `_json`, but let other tasks run in between: an answer may have a million values."""
    pieces: list[bytes] = []
    turn_ends = time.monotonic() + _TURN_S
    for piece in _pieces(content):
        pieces.append(piece)
        if time.monotonic() > turn_ends:
            await asyncio.sleep(0)
            turn_ends = time.monotonic() + _TURN_S
    return b"".join(pieces)


def _pieces(content: object) -> Iterator[bytes]:
    """Yield the JSON of a value in pieces. The C encoder writes each; it is ten times as fast as Python's."""
    if isinstance(content, dict) and content:
        for number, (key, value) in enumerate(content.items()):
            yield (b"," if number else b"{") + _json(key) + b":"
            if key == "choices" and isinstance(value, list) and value:
                for place, choice in enumerate(value):
                    yield b"," if place else b"["
                    yield from _pieces(choice)
                yield b"]"
            else:
                yield from _pieces(value)
        yield b"}"
    elif isinstance(content, list) and content:
        for start in range(0, len(content), _GROUP):
            yield b"," if start else b"["
            yield _json(content[start : start + _GROUP])[1:-1]
        yield b"]"
    else:
        yield _json(content)


def _event(content: object) -> bytes:
    return b"data: " + _json(content) + b"\n\n"


def _json(content: object) -> bytes:
    return _ENCODER.encode(content).encode()
