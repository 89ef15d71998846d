"""A stand-in for a server of language models: its own HTTP, in a thread, with behaviour that a test decides."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

VOCAB_SIZE = 1_000

Step = float | str | None
"""What an answer does next: sleep so many seconds, send an event's data, or break the connection."""

Script = Callable[[dict[str, Any]], Iterator[Step]]


def tokens(body: dict[str, Any], *, first_s: float = 0.0, token_s: float = 0.0, bundle: int = 1) -> Iterator[Step]:
    """The answer of a server that is well: as many tokens as asked for, `bundle` in a chunk, then usage and [DONE]."""
    num = body["max_tokens"]
    yield first_s
    for start in range(0, num, bundle):
        is_last = start + bundle >= num
        text = "x" * min(bundle, num - start)
        yield json.dumps({"choices": [{"text": text, "finish_reason": "length" if is_last else None}]})
        if not is_last:
            yield token_s
    usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": num}
    yield json.dumps({"choices": [], "usage": usage})
    yield "[DONE]"


class FakeServer:
    """Serves on a free port of 127.0.0.1 while entered.

    script: how a streamed completion is answered. status: of a streamed completion, from its number. hold_until:
    nothing is answered before so many streamed completions are here together.
    """

    def __init__(
        self,
        *,
        script: Script = tokens,
        status: Callable[[int], int] = lambda number: 200,
        api_key: str | None = None,
        max_model_len: int | None = 512,
        hold_until: int = 0,
        metrics_prefix: str | None = "whet:",
        content_type: str = "text/event-stream",
    ) -> None:
        self.script, self.status, self.api_key = script, status, api_key
        self.max_model_len, self.hold_until, self.metrics_prefix = max_model_len, hold_until, metrics_prefix
        self.content_type = content_type
        self.bodies: list[dict[str, Any]] = []  # of streamed completions, as they came
        self.connections = 0
        self.in_flight = self.most_in_flight = 0
        self._queries = self._hits = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _start(self) -> asyncio.Server:
        self._all_here = asyncio.Event()
        return await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def _stop(self) -> None:
        self._server.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await self._answer_one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection goes on."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, path, _ = head.split(" ", 2)
        headers = {line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in head.split("\r\n")[1:]}
        content = await reader.readexactly(int(headers.get("content-length", 0)))
        if self.api_key is not None and headers.get("authorization") != f"Bearer {self.api_key}":
            return self._reply(writer, 401, {"error": {"message": "wrong key"}})
        if (method, path) == ("GET", "/v1/models"):
            return self._reply(writer, 200, {"data": [{"id": "fake", "max_model_len": self.max_model_len}]})
        if (method, path) == ("GET", "/metrics"):
            return self._reply(writer, 200 if self.metrics_prefix else 404, self._metrics())
        if (method, path) == ("GET", "/health"):
            return self._reply(writer, 200, {})
        if (method, path) != ("POST", "/v1/completions"):
            return self._reply(writer, 404, {"detail": "Not Found"})
        body = json.loads(content)
        if max(body["prompt"]) >= VOCAB_SIZE:
            return self._reply(writer, 400, {"error": {"message": "token out of range"}})
        if not body.get("stream"):
            return self._reply(writer, 200, {"choices": [{"text": "x"}]})
        return await self._stream(body, writer)

    async def _stream(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        self._count_prefix(body["prompt"])
        self.bodies.append(body)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            if len(self.bodies) >= self.hold_until:
                self._all_here.set()
            await self._all_here.wait()
            status = self.status(len(self.bodies))
            if status != 200:
                return self._reply(writer, status, {"error": {"message": f"status {status}"}})
            head = f"HTTP/1.1 200 OK\r\nContent-Type: {self.content_type}\r\nTransfer-Encoding: chunked\r\n\r\n"
            writer.write(head.encode())
            for step in self.script(body):
                if step is None:
                    return False
                if isinstance(step, str):
                    data = f"data: {step}\n\n".encode()
                    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
                    await writer.drain()
                elif step:
                    await asyncio.sleep(step)
            writer.write(b"0\r\n\r\n")
            await writer.drain()
            return True
        finally:
            self.in_flight -= 1

    def _count_prefix(self, prompt: list[int]) -> None:
        """Hits are the first tokens that are those of the prompt before."""
        self._queries += len(prompt)
        before = self.bodies[-1]["prompt"] if self.bodies else []
        for a, b in zip(before, prompt, strict=False):
            if a != b:
                break
            self._hits += 1

    def _metrics(self) -> str:
        label = '{model_name="fake"}'
        names = {"queries": self._queries, "hits": self._hits}
        lines = []
        for name, value in names.items():
            full = f"{self.metrics_prefix}prefix_cache_{name}_total"
            lines += [f"# HELP {full} tokens", f"# TYPE {full} counter", f"{full}{label} {value}"]
        return "\n".join(lines) + "\n"

    def _reply(self, writer: asyncio.StreamWriter, status: int, content: object) -> bool:
        data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)
        return True
