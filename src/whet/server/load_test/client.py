"""Send requests to an OpenAI-compatible server of language models, and time the answers."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

from whet.errors import MissingExtra, OptionError, TargetError, reason
from whet.server.load_test.record import Answer, Failure

clock = time.perf_counter

_CONNECT_S = 10.0
_SILENCE_S = 120.0  # a request that receives no byte for so long counts as timed out
_BROKEN_OFF = ("abort", "error")  # finish reasons of an answer that the server ended early


class CompletionClient:
    """Send requests to one server. Use it as an async context manager.

    It opens as many connections as it needs, so that no request waits for a free one. Each connection is an httpx2
    client of its own. A pool would search all its connections at every request: with 256 in flight, this took 3 ms of
    the generator's time for each request, instead of 0.9 ms (2-core Zen 5, httpx2 2.16).

    A request that receives no byte for `silence_s` seconds counts as timed out.

    Raises:
        OptionError: The address is not valid.
        MissingExtra: The package httpx2 is not installed.
    """

    def __init__(self, url: str, *, api_key: str | None = None, silence_s: float = _SILENCE_S) -> None:
        self.url = root_of(url)
        self.model = ""
        self._httpx = _library()
        self._settings: dict[str, Any] = {
            "base_url": self.url,
            "headers": {"Authorization": f"Bearer {api_key}"} if api_key else {},
            "timeout": self._httpx.Timeout(silence_s, connect=_CONNECT_S, pool=None),
            # Ignore proxies that the environment names: they would be measured too.
            "trust_env": False,
            "verify": self._httpx.create_ssl_context() if self.url.startswith("https") else False,
        }
        self._free: list[Any] = []
        self._all: list[Any] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self._all:
            await connection.aclose()

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        """Yield a connection that no other request uses at the same time."""
        if self._free:
            connection = self._free.pop()
        else:
            connection = self._httpx.AsyncClient(**self._settings)
            self._all.append(connection)
        try:
            yield connection
        finally:
            self._free.append(connection)

    async def ask(self, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Get a path, or post a body to it, and return status and content of the answer.

        Raises:
            TargetError: The server cannot be reached.
        """
        method, headers = ("GET", None) if body is None else ("POST", _JSON)
        try:
            with self._connection() as connection:
                response = await connection.request(method, path, content=body, headers=headers)
                return response.status_code, response.content
        except (self._httpx.HTTPError, self._httpx.InvalidURL) as error:
            raise TargetError(f"cannot reach {self.url}: {reason(error)}; is a server running there?") from error

    async def ask_once(self, token_ids: Sequence[int]) -> tuple[int, str]:
        """Ask for one token, not streamed, and return the status, and the server's message unless the status is 200."""
        body = {"model": self.model, "prompt": list(token_ids), "max_tokens": 1, "temperature": 0}
        status, content = await self.ask("/v1/completions", json.dumps(body).encode())
        return status, "" if status == 200 else message_of(content)

    async def complete(self, token_ids: Sequence[int], num_output: int) -> Answer:
        """Ask for num_output tokens after a prompt, greedily, and time each chunk. The answer holds failures."""
        body = json.dumps(
            {
                "model": self.model,
                "prompt": list(token_ids),
                "max_tokens": num_output,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        ).encode()
        answer = Answer(sent_s=clock(), token_s=[])
        try:
            with self._connection() as connection:
                async with connection.stream("POST", "/v1/completions", content=body, headers=_JSON) as response:
                    await self._read(response, answer)
        except (self._httpx.ConnectError, self._httpx.ConnectTimeout) as error:
            answer.failure, answer.detail = Failure.CONNECT, reason(error)
        except self._httpx.TimeoutException as error:
            answer.failure, answer.detail = Failure.TIMEOUT, reason(error)
        except self._httpx.SSEError as error:
            answer.failure, answer.detail = Failure.NO_STREAM, reason(error)
        except self._httpx.HTTPError as error:
            answer.failure, answer.detail = Failure.BROKEN, reason(error)
        return answer

    async def _read(self, response: Any, answer: Answer) -> None:
        """Read all events, also those after [DONE]: only a connection that was read to the end can be reused."""
        if response.status_code != 200:
            refused = response.status_code == 429
            answer.failure = Failure.REFUSED if refused else f"HTTP {response.status_code}"
            answer.detail = message_of(await response.aread())
            return
        is_finished = False
        async for event in self._httpx.EventSource(response):
            now_s = clock()
            if event.data == "[DONE]" or answer.failure:
                continue
            try:
                chunk = _Chunk.model_validate_json(event.data)
            except ValidationError:
                answer.failure, answer.detail = Failure.IN_STREAM, f"not a completion's chunk: {event.data[:80]!r}"
                continue
            if chunk.error is not None:
                answer.failure, answer.detail = Failure.IN_STREAM, message_of(event.data.encode())
                continue
            if chunk.usage is not None:
                answer.num_output, answer.has_usage = chunk.usage.completion_tokens, True
            for choice in chunk.choices[:1]:
                # An empty text may be a token with an incomplete character. With a finish reason, it is no token.
                if choice.text or choice.finish_reason is None or not answer.token_s:
                    answer.token_s.append(now_s)
                is_finished |= choice.finish_reason is not None
                if choice.finish_reason in _BROKEN_OFF:
                    answer.failure, answer.detail = Failure.IN_STREAM, f"finish_reason {choice.finish_reason}"
        if not answer.failure and not is_finished:
            answer.failure, answer.detail = Failure.CUT_SHORT, "the stream ended without a finish_reason"
        if not answer.has_usage:
            answer.num_output = len(answer.token_s)


def root_of(url: str) -> str:
    """Return a server's address without a trailing slash or /v1.

    Raises:
        OptionError: It is not a valid address.
    """
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is not a number
        is_address = False
    if not is_address or parts.query or parts.fragment:
        raise OptionError(f"{url} is not a server's address; write it as http://127.0.0.1:8000")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def is_up(url: str) -> bool:
    """Return whether a server answers at /health that it takes requests."""
    httpx = _library()
    try:
        return bool(httpx.get(f"{url}/health", timeout=2.0, trust_env=False).status_code == 200)
    except httpx.HTTPError:
        return False


def message_of(content: bytes) -> str:
    """Return a server's error message: that of OpenAI's error object, else the first line of the body."""
    try:
        body = json.loads(content)
        error = body.get("error", body.get("detail", body))
        text = error.get("message", error) if isinstance(error, dict) else error
    except (ValueError, AttributeError):
        text = content.decode(errors="replace")
    return next(iter(str(text).strip().splitlines()), "")[:200]


_JSON = {"Content-Type": "application/json"}


class _Choice(BaseModel):
    text: str | None = ""
    finish_reason: str | None = None


class _Usage(BaseModel):
    completion_tokens: int


class _Chunk(BaseModel):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


def _library() -> ModuleType:
    try:
        import httpx2
    except ImportError as error:
        raise MissingExtra("httpx2", "serve", "whet bench-serve") from error
    return httpx2
