"""A server that speaks what the page asks of `whet serve`, and does what a test tells it to."""

import json
import threading
from collections import deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import whet
from whet.ui import charts, page_style

PAGE = Path(whet.__file__).parent / "server" / "page"
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
POLICY += "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
POLICY += "require-trusted-types-for 'script'; trusted-types 'none'"
_TYPES = {".css": "text/css", ".js": "text/javascript", ".html": "text/html"}
_PATIENCE_S = 10.0


@dataclass
class Reply:
    """One answer to a request for text.

    pieces: the text as it is streamed. held: each piece waits until the test lets it go (`FakeServer.let_go`).
    status other than 200: an error in the OpenAI shape, `message` in it. breaks: the connection ends after the pieces,
    when the test lets it. endless: goes on with silence until the client has gone.
    """

    pieces: tuple[str, ...] = ()
    held: bool = False
    status: int = 200
    message: str = ""
    retry_after: str | None = None
    breaks: bool = False
    endless: bool = False
    finish: str = "stop"
    error_at_end: str = ""


@dataclass
class FakeServer:
    """Serves from construction to `close`; port 0 takes any free one."""

    port: int = 0
    key: str = ""
    tuned: dict[str, dict[str, Any]] = field(default_factory=dict)
    has_chat: bool = True
    live: dict[str, Any] = field(default_factory=dict)
    replies: deque[Reply] = field(default_factory=deque)
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.live = self.live or live()
        self.client_gone = threading.Event()
        self._gate = threading.Semaphore(0)
        self._http = _Http(("127.0.0.1", self.port), _Handler)
        self._http.fake = self
        self.port = self._http.server_address[1]
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def let_go(self, num_pieces: int = 1) -> None:
        self._gate.release(num_pieces)

    def wait(self) -> None:
        assert self._gate.acquire(timeout=_PATIENCE_S)

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


def live(**changed: Any) -> dict[str, Any]:
    """What GET /live answers: the engine's figures, as the interface has them, with the server's limits."""
    figures = {
        "model": "docs-gpt", "is_demo": True, "uptime_s": 75.0, "max_num_seqs": 64, "max_model_len": 2048,
        "phase": "ready",
        "num_running": 3, "num_waiting": 2, "kv_cache_usage": 0.25,
        "prompt_tokens_total": 12000, "generation_tokens_total": 4000, "tokens_per_s": 118.4,
        "prefix_cache_queries": 8000, "prefix_cache_hits": 6000, "num_preemptions": 4,
        "num_draft_tokens": 1000, "num_accepted_tokens": 620, "speculation": "on",
        "request_success": {"stop": 40, "length": 2, "abort": 0},
    }  # fmt: skip
    return {**figures, **changed}


class _Http(ThreadingHTTPServer):
    fake: FakeServer
    daemon_threads = True
    block_on_close = False


class _Handler(BaseHTTPRequestHandler):
    # HTTP/1.0: a connection for each request, so that none outlives the server that a test ends.
    server: _Http

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/live":
            self._send(200, json.dumps(self.server.fake.live).encode(), "application/json")
            return
        if path == "/v1/models":
            fake = self.server.fake
            listed = [{"id": name, "max_model_len": None} for name in fake.tuned]
            listed += [{"id": fake.live["model"], "max_model_len": 2048}] if fake.has_chat else []
            self._send(200, json.dumps({"data": listed}).encode(), "application/json")
            return
        if path.startswith("/v2/models/"):
            self._send(200, json.dumps(self.server.fake.tuned[path.rpartition("/")[2]]).encode(), "application/json")
            return
        if path == "/metrics":
            counts = "".join(
                f'whet:infer_samples_total{{model_name="{name}"}} 3.0\n' for name in self.server.fake.tuned
            )
            self._send(200, counts.encode(), "text/plain")
            return
        name = "index.html" if path == "/" else path.removeprefix("/static/")
        shared = next((room for room in (charts, page_style) if name in room.FILES), None)
        file = PAGE / name
        if not shared and not file.is_file():
            self._send(404, b"", "text/plain")
            return
        content = shared.read(name).encode() if shared else file.read_bytes()
        self._send(200, content, _TYPES[file.suffix], {"Content-Security-Policy": POLICY})

    def do_POST(self) -> None:
        fake = self.server.fake
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if fake.key and self.headers.get("Authorization") != f"Bearer {fake.key}":
            self._error(Reply(status=401, message="no such key"))
            return
        fake.asked.append((self.path, body))
        reply = fake.replies.popleft() if fake.replies else Reply(("Hello", " there", "."))
        if reply.status != 200:
            self._error(reply)
            return
        try:
            self._stream(reply)
        except OSError:
            fake.client_gone.set()

    def _stream(self, reply: Reply) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        if reply.breaks:
            self.send_header("Content-Length", "1000000")
        self.end_headers()
        for piece in reply.pieces:
            if reply.held:
                self.server.fake.wait()
            self._event(self._chunk(piece, None))
        while reply.endless:
            self.wfile.write(b": still here\n\n")
            self.wfile.flush()
            threading.Event().wait(0.01)
        if reply.error_at_end:
            self._event({"error": {"message": reply.error_at_end}})
        if reply.breaks:
            self.server.fake.wait()
        if reply.breaks or reply.error_at_end:
            return
        self._event(self._chunk("", reply.finish))
        usage = {"prompt_tokens": 7, "completion_tokens": 2 * len(reply.pieces)}
        self._event({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def _chunk(self, text: str, finish: str | None) -> dict[str, Any]:
        said = {"delta": {"content": text}} if "chat" in self.path else {"text": text}
        return {"choices": [{"index": 0, "finish_reason": finish, **said}]}

    def _event(self, value: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(value, ensure_ascii=False)}\n\n".encode())
        self.wfile.flush()

    def _error(self, reply: Reply) -> None:
        said = {"error": {"message": reply.message, "type": "invalid_request_error", "code": None}}
        more = {"Retry-After": reply.retry_after} if reply.retry_after else {}
        self._send(reply.status, json.dumps(said).encode(), "application/json", more)

    def _send(self, status: int, content: bytes, content_type: str, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
