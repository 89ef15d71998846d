"""Clients that mean no good, or are very slow: they cost themselves something, and nobody else."""

import asyncio
import errno
import http.client
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, cast

import pytest
from asking import Answer, ask, serving
from fake_engine import FakeEngine
from test_body import CHUNKED, check_error, connected, head, read_answer

from whet.server.http import body as body_module
from whet.server.http import listener as listener_module
from whet.server.http.connection import Connection
from whet.server.http.listener import Listener
from whet.server.http.run import HttpServer

PATH = "/v1/completions"
BODY = {"prompt": "Once", "max_tokens": 5}
HALF_A_HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Half"
MANY = {"Content-Type": "application/json"}


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    engine = FakeEngine()
    yield engine
    engine.let_go()


def gone(client: socket.socket) -> bool:
    """Whether the server has closed it."""
    try:
        return client.recv(1000) == b""
    except ConnectionError:
        return True


def test_half_a_head_is_waited_for_so_long(engine: FakeEngine) -> None:
    with serving(engine, head_timeout_s=0.2) as server, connected(server) as client:
        client.sendall(HALF_A_HEAD)
        check_error(read_answer(client), 408, "head_timeout")
        assert gone(client)


def test_a_head_that_comes_byte_by_byte_is_late_too(engine: FakeEngine) -> None:
    with serving(engine, head_timeout_s=0.3) as server, connected(server) as client:
        began = time.monotonic()
        with pytest.raises(OSError):
            while time.monotonic() - began < 30:
                client.sendall(b"x" if time.monotonic() > began + 0.01 else HALF_A_HEAD)
                time.sleep(0.02)


def test_the_second_head_of_a_connection_is_watched_too(engine: FakeEngine) -> None:
    with serving(engine, head_timeout_s=0.2) as server, connected(server) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert read_answer(client).status == 200
        client.sendall(HALF_A_HEAD)
        check_error(read_answer(client), 408, "head_timeout")


@pytest.mark.parametrize("framing", ["Content-Length: 100", CHUNKED])
def test_half_a_body_is_waited_for_so_long(engine: FakeEngine, framing: str) -> None:
    with serving(engine, body_timeout_s=0.2) as server, connected(server) as client:
        client.sendall(head(PATH, framing, "Content-Type: application/json") + b"5\r\n{")
        answer = read_answer(client)
        check_error(answer, 408, "body_timeout")
        assert answer.headers["connection"] == "close"
        assert gone(client)


def test_a_request_that_takes_long_is_not_late(engine: FakeEngine) -> None:
    engine.held = True
    slow = {"head_timeout_s": 0.1, "body_timeout_s": 0.1, "write_timeout_s": 0.1}
    with serving(engine, **slow) as server, ThreadPoolExecutor() as others:
        asking = others.submit(ask, server, PATH, BODY)
        engine.wait_running(1)
        time.sleep(0.3)
        engine.let_go()
        assert asking.result().status == 200


def test_half_heads_do_not_keep_out_who_asks(engine: FakeEngine) -> None:
    """More of them than there may be connections, and an answer that runs meanwhile goes on."""
    engine.held = True
    with serving(engine, max_connections=8) as server, ExitStack() as stack, ThreadPoolExecutor() as others:
        asking = others.submit(ask, server, PATH, BODY)
        engine.wait_running(1)
        halves = [stack.enter_context(connected(server)) for _ in range(40)]
        for client in halves:
            try:
                client.sendall(HALF_A_HEAD)
            except ConnectionError:
                continue
        for _ in range(3):
            assert ask(server, "/health").status == 200
        assert gone(halves[0])
        engine.let_go()
        assert asking.result().status == 200


def test_half_bodies_do_not_keep_out_who_asks(engine: FakeEngine) -> None:
    with serving(engine, max_connections=8) as server, ExitStack() as stack:
        for _ in range(20):
            client = stack.enter_context(connected(server))
            client.sendall(head(PATH, "Content-Length: 100") + b"{")
        for _ in range(3):
            assert ask(server, PATH, BODY).status == 200


def test_where_all_are_being_served_the_next_is_told_so(engine: FakeEngine) -> None:
    engine.held = True
    with serving(engine, max_connections=2) as server, ThreadPoolExecutor() as others:
        asking = [others.submit(ask, server, PATH, BODY) for _ in range(2)]
        engine.wait_running(2)
        answer = ask(server, "/health")
        check_error(answer, 503, "unavailable")
        assert answer.headers["connection"] == "close"
        engine.let_go()
        assert [one.result().status for one in asking] == [200, 200]
        assert ask(server, "/health").status == 200


class Scarce(socket.socket):
    """A listening socket for which there are no files for a while."""

    failures = 3

    def accept(self) -> tuple[socket.socket, Any]:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_where_files_run_out_it_tries_again_and_says_it_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener_module, "_PAUSE_S", 0.01)
    made: list[asyncio.Protocol] = []

    def make() -> Connection:
        made.append(asyncio.Protocol())
        return cast(Connection, made[-1])

    async def run() -> None:
        with Scarce() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            listener = Listener(listening, make, set(), 10)
            _reader, writer = await asyncio.open_connection(*listening.getsockname())
            async with asyncio.timeout(10):
                while not made:
                    await asyncio.sleep(0.01)
            listener.close()
            await listener.wait_closed()
            writer.close()
            assert listening.failures == 0

    asyncio.run(run())
    records = [record for record in caplog.records if record.name == "whet.server"]
    assert [(record.levelno, record.exc_info) for record in records] == [(logging.WARNING, None)]
    assert "Too many open files" in records[0].getMessage()


def test_unfinished_bodies_take_no_more_than_they_may(engine: FakeEngine) -> None:
    """Those that hold most are refused; a small request is served beside them."""
    with serving(engine, max_body_bytes=200_000, max_pending_bytes=500_000) as server, ExitStack() as stack:
        clients = [stack.enter_context(connected(server)) for _ in range(12)]
        for client in clients:
            client.sendall(head(PATH, "Content-Length: 190000") + b"x" * 150_000)
        statuses = []
        for client in clients[:9]:  # at most three have room
            client.settimeout(10)
            answer = read_answer(client) if client is not clients[-1] else None
            if answer is not None:
                statuses.append(answer.status)
            if len(statuses) == 8:
                break
        assert set(statuses) == {503}
        assert ask(server, PATH, BODY).status == 200


def test_what_is_read_counts_no_longer() -> None:
    held = body_module.Bodies(100)

    class Fake:
        is_left = True
        refused: object = None
        is_cut: object = None

        def cut(self, error: object) -> None:
            self.refused = error

    large, small, late = Fake(), Fake(), Fake()
    held.add(cast(body_module.Body, large), 60)
    held.add(cast(body_module.Body, small), 10)
    held.add(cast(body_module.Body, late), 40)  # 110: the largest goes
    assert (bool(large.refused), small.refused, late.refused, held.num_bytes) == (True, None, None, 50)
    held.release(cast(body_module.Body, late))
    assert held.num_bytes == 10


def test_who_reads_nothing_is_let_go(engine: FakeEngine) -> None:
    engine.max_model_len = 10**8  # far more than the sockets' buffers hold, however large these are
    with serving(engine, write_timeout_s=0.3) as server, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(20)
        client.connect((server.host, server.port))
        content = json.dumps({**BODY, "max_tokens": 10**7, "stream": True}).encode()
        client.sendall(head(PATH, "Content-Type: application/json", f"Content-Length: {len(content)}") + content)
        engine.wait_for(lambda: len(engine.aborted) == 1, 60)
        received = b""
        try:
            while part := client.recv(2**20):
                received += part
        except ConnectionError:
            pass
        assert b"[DONE]" not in received
        assert ask(server, "/health").status == 200


@pytest.mark.parametrize("path", [PATH, "/health", "/nowhere"])
def test_a_body_that_is_framed_twice(engine: FakeEngine, path: str) -> None:
    """A proxy that believes the one and a server that believes the other see two different next requests."""
    with serving(engine) as server, connected(server) as client:
        smuggled = b"0\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        client.sendall(head(path, "Content-Length: 5", CHUNKED) + smuggled)
        answer = read_answer(client)
        check_error(answer, 400, "invalid_http")
        assert answer.headers["connection"] == "close"
        assert gone(client)


def test_an_unhandled_error_says_that_the_connection_ends(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(engine) as server:
        monkeypatch.setattr(engine, "stats", None)
        connection = http.client.HTTPConnection(server.host, server.port, timeout=20)
        connection.request("GET", "/live")
        response = connection.getresponse()
        response.read()
        assert (response.status, response.getheader("Connection")) == (500, "close")
        connection.close()


LARGE = "x" * 70_000  # takes a body beyond what the server reads itself

ALIKE: list[tuple[str, dict[str, Any]]] = [
    (PATH, {"prompt": "Once upon", "max_tokens": 4}),
    (PATH, {"prompt": ["Once", "naïve 🙂"], "max_tokens": 3, "n": 2, "echo": True, "logprobs": 2}),
    (PATH, {"prompt": [[5, 6, 7], [8]], "max_tokens": 3, "echo": True, "stop": ["fox"], "logit_bias": {"5": 1.5}}),
    (PATH, {"prompt": "Once", "stream": True, "stream_options": {"include_usage": True}, "seed": 5}),
    (PATH, {"prompt": "Once", "temperature": -1}),
    (PATH, {"prompt": []}),
    (PATH, {"prompt": "word " * 600}),
    (PATH, {"prompt": "a\ud800"}),
    (PATH, {"prompt": "Once", "model": "other"}),
    (PATH, {"prompt": "Once", "guided_json": {}}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "top_p": 0.5}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "n": 2}),
    ("/v1/chat/completions", {"messages": [{"role": "user"}], "logprobs": True, "top_logprobs": 2, "max_tokens": 2}),
    ("/v1/chat/completions", {"messages": [], "max_tokens": 4}),
    ("/tokenize", {"prompt": "naïve 🙂", "return_token_strs": True}),
    ("/tokenize", {"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": False}),
    ("/detokenize", {"tokens": [5, 6, 7]}),
    ("/detokenize", {"tokens": [5, 10**6]}),
]


@pytest.fixture(scope="module")
def shared() -> Iterator[HttpServer]:
    with serving(FakeEngine()) as server:
        yield server


@pytest.mark.parametrize(("path", "body"), ALIKE)
def test_a_large_body_is_answered_as_a_small_one(shared: HttpServer, path: str, body: dict[str, Any]) -> None:
    """Another process reads it."""

    def comparable(answer: Answer) -> tuple[int, str]:
        text = answer.content.decode()
        for line in text.removesuffix("\n\n").split("\n\n"):
            with_id = json.loads(line.removeprefix("data: ")) if line != "data: [DONE]" else {}
            for name in ("id", "created"):
                text = text.replace(json.dumps(with_id.get(name, "")), "0")
        return answer.status, text

    small, large = ask(shared, path, body), ask(shared, path, {**body, "user": LARGE})
    assert comparable(small) == comparable(large)


def test_a_large_answer_is_written_as_a_small_one(shared: HttpServer) -> None:
    """In turns, and in the same words."""
    body = {"prompt": "the word " * 100, "echo": True, "logprobs": 20, "n": 3, "max_tokens": 2}
    whole = ask(shared, PATH, body)
    assert whole.content == json.dumps(whole.json, ensure_ascii=False, separators=(",", ":")).encode()
    assert len({json.dumps(choice["logprobs"]) for choice in whole.json["choices"]}) == 1
    assert len(whole.json["choices"][0]["logprobs"]["tokens"]) > 200


def test_json_that_is_none_is_refused_wherever_it_is_read(shared: HttpServer) -> None:
    for content in (b"[" * 90_000, b'{"a":' * 30_000, b'{"prompt": "' + b"x" * 90_000, b"\xff" * 90_000, b"9" * 90_000):
        answer = ask(shared, PATH, content)
        assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")
    kind = {"Content-Type": "text/plain"}
    answer = ask(shared, PATH, json.dumps({**BODY, "user": LARGE}).encode(), headers=kind)
    assert (answer.status, "application/json" in answer.error["message"]) == (400, True)


def test_a_large_body_is_not_read_by_the_server_itself(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsing, templates and tokenising hold the interpreter's lock: whatever runs beside them would stand still."""
    with serving(engine) as server:
        monkeypatch.setattr("whet.server.http.request_parsing.Readers.parse", lambda *_: pytest.fail("read here"))
        monkeypatch.setattr("whet.server.http.request_parsing.Reader.prompts", lambda *_: pytest.fail("read here"))
        for body in ({**BODY, "user": LARGE}, {"prompt": "a b c " * 500_000}, {"prompt": [[1] * 50_000]}):
            assert ask(server, PATH, body).status in (200, 400)


def test_the_end_of_the_process_that_reads_costs_one_request(engine: FakeEngine) -> None:
    with serving(engine) as server:
        assert ask(server, PATH, {**BODY, "user": LARGE}).status == 200
        process = server._intake._process._process
        assert process is not None
        process.kill()
        statuses = [ask(server, PATH, {**BODY, "user": LARGE}).status for _ in range(3)]
        assert statuses[1:] == [200, 200]
        assert statuses[0] in (200, 503)
        assert server._intake._process._process.pid != process.pid


def test_the_process_that_reads_ends_with_the_server(engine: FakeEngine) -> None:
    with serving(engine) as server:
        assert ask(server, PATH, {**BODY, "user": LARGE}).status == 200
        process = server._intake._process._process
        assert process is not None
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_a_full_queue_refuses_before_a_large_body_is_read(engine: FakeEngine) -> None:
    engine.capacity = 0
    with serving(engine) as server:
        assert ask(server, PATH, {**BODY, "user": LARGE}).status == 429
        assert server._intake._process._process is None
