"""Call an ASGI application with a whole request, and hand back its answer as it comes."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Any

from starlette.types import ASGIApp, Message

_HEAD = ("method", "path", "raw_path", "query_string", "headers", "http_version", "scheme", "client", "server")


def head_of(scope: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of an HTTP request's ASGI scope that another process can be sent."""
    return {name: scope[name] for name in _HEAD if name in scope}


async def exchange(app: ASGIApp, head: Mapping[str, Any], body: bytes) -> AsyncGenerator[list[Message], None]:
    """Yield the messages of an application's answer, all that are there at a time.

    If the generator is closed early, the application hears that the client has left, and is cancelled.

    Args:
        head: What `head_of` returned, and what else the scope is to hold.
        body: The whole body of the request.
    """
    scope = {"type": "http", "asgi": {"version": "3.0"}, "root_path": "", **head}
    waiting: list[Message] = []
    has_news, is_gone = asyncio.Event(), asyncio.Event()
    parts = [body]

    async def receive() -> Message:
        if parts:
            return {"type": "http.request", "body": parts.pop(), "more_body": False}
        await is_gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        waiting.append(message)
        has_news.set()

    answering = asyncio.ensure_future(app(scope, receive, send))
    answering.add_done_callback(lambda _: has_news.set())
    try:
        while waiting or not answering.done():
            await has_news.wait()
            has_news.clear()
            if waiting:
                messages = list(waiting)
                waiting.clear()
                yield messages
        answering.result()
    finally:
        is_gone.set()
        if not answering.done():
            answering.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await answering
