"""Turn the engine's deltas into one answer or a stream of events, for both kinds of completion.

Source: html.spec.whatwg.org, "Server-sent events"; platform.openai.com/docs/api-reference/chat-streaming.
"""

import asyncio
import json
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from fastapi import Response
from starlette.types import Receive, Scope, Send

from whet.server.completion import Delta
from whet.server.http.errors import ApiError
from whet.server.http.events import DONE, EVENT_END, EVENTS
from whet.server.http.generation import Generation
from whet.server.http.leaving import answered, unless_gone
from whet.server.http.protocol import Sampling

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

    def add(self, choice: int, delta: Delta) -> None:
        prompt = choice // self._num_choices
        self._prompts[prompt] = delta.num_prompt_tokens
        self._cached[prompt] = max(self._cached.get(prompt, 0), delta.num_cached_tokens)
        self._num_generated += len(delta.token_ids)

    def as_json(self) -> dict[str, Any]:
        """Return the counts in the form of OpenAI's `usage` field."""
        num_prompt = sum(self._prompts.values())
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": self._num_generated,
            "total_tokens": num_prompt + self._num_generated,
            "prompt_tokens_details": {"cached_tokens": sum(self._cached.values())},
        }


class Writer(ABC):
    """Write one kind of answer to one request.

    Call `add` for every delta. It returns the chunks of a stream. For an answer in one piece, call `whole` at the end.

    Args:
        kind: The beginning of the answer's id.
        described: What the answer calls itself in its field `object`.
    """

    def __init__(self, body: Sampling, kind: str, described: str, model: str) -> None:
        self._has_usage_chunk = body.has_usage_chunk
        self._head = {
            "id": f"{kind}-{uuid.uuid4().hex}",
            "object": described,
            "created": int(time.time()),
            "model": model,
        }
        self.usage = Usage(body.num_choices)

    @abstractmethod
    def add(self, choice: int, delta: Delta) -> list[dict[str, Any]]:
        """Take in a delta of a choice, and return the chunks of the stream that follow from it. There may be none."""

    @abstractmethod
    def choices(self) -> list[dict[str, Any]]:
        """Return the choices of a whole answer."""

    def chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        """Return the chunk of a stream with a piece of one choice."""
        usage = {"usage": None} if self._has_usage_chunk else {}
        return {**self._head, "choices": [choice], **usage}

    def last_chunk(self) -> dict[str, Any] | None:
        """Return the chunk with the token usage that ends a stream, or None if the request did not ask for it."""
        return {**self._head, "choices": [], "usage": self.usage.as_json()} if self._has_usage_chunk else None

    def whole(self) -> dict[str, Any]:
        return {**self._head, "choices": self.choices(), "usage": self.usage.as_json()}


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
        return await answered(receive, collect())
    finally:
        generation.close()


class EventStream(Response):
    """Send events as they are generated. An error before the first event is answered with an HTTP error status."""

    def __init__(self, generation: Generation, writer: Writer) -> None:
        super().__init__(media_type=EVENTS, headers=_STREAM_HEADERS)
        del self.headers["content-length"]
        self._generation = generation
        self._writer = writer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream, as an ASGI application. If the client leaves, abort the generation."""
        try:
            await unless_gone(receive, self._send(send))
        finally:
            self._generation.close()

    async def _send(self, send: Send) -> None:
        has_started = False

        async def add(content: bytes) -> None:
            nonlocal has_started
            if not has_started:
                has_started = True
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": content, "more_body": True})

        try:
            # All events that are waiting are sent in one piece. A slow client so gets fewer and larger pieces.
            async for news in self._generation.deltas():
                events: list[bytes] = []
                for choice, delta in news:
                    events.extend(map(_event, self._writer.add(choice, delta)))
                    await _let_others(delta)
                if events:
                    await add(b"".join(events))
            if (last := self._writer.last_chunk()) is not None:
                await add(_event(last))
        except ApiError as error:
            if not has_started:
                raise
            await add(_event(error.content()))
        await add(DONE)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def json_response(content: object) -> Response:
    """Return a value as a JSON response. FastAPI's own is slower, since it inspects every value first."""
    return Response(_json(content), media_type="application/json")


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
    return b"data: " + _json(content) + EVENT_END


def _json(content: object) -> bytes:
    return _ENCODER.encode(content).encode()
