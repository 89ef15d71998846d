"""Bodies that are too large, or still on their way when the answer is ready; heads that are no HTTP."""

import asyncio
import json
import logging
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from asking import Answer, ask, serving
from fake_engine import FakeEngine
from starlette.datastructures import Headers
from starlette.types import Message

from whet.server.http import body, hardened
from whet.server.http.body import DISCARDED, Body
from whet.server.http.documented import Failed
from whet.server.http.run import HttpServer

ENGINE = FakeEngine()
LIMIT = 200_000
PATH = "/v1/completions"


@pytest.fixture(scope="module")
def server() -> Iterator[HttpServer]:
    with serving(ENGINE, max_body_bytes=LIMIT) as server:
        yield server


@pytest.fixture(autouse=True)
def nothing_goes_wrong(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No traceback, whatever comes; and the engine hears nothing of it."""
    ENGINE.reset()
    yield
    assert [record for record in caplog.get_records("call") if record.levelno >= logging.ERROR or record.exc_info] == []
    assert (ENGINE.asked, ENGINE.num_reserved) == ([], 0)


@contextmanager
def connected(server: HttpServer) -> Iterator[socket.socket]:
    with socket.create_connection((server.host, server.port), timeout=20) as client:
        yield client


def head(path: str = PATH, *lines: str) -> bytes:
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode()


def read_answer(client: socket.socket) -> Answer:
    """As a client does that reads no more than Content-Length says."""
    with client.makefile("rb") as stream:
        status = int(stream.readline().split()[1])
        pairs = (line.decode().strip().partition(": ") for line in iter(stream.readline, b"\r\n"))
        headers = {name.lower(): value for name, _, value in pairs}
        return Answer(status, headers, stream.read(int(headers["content-length"])))


def check_error(answer: Answer, status: int, code: str | None = None) -> None:
    Failed.model_validate(answer.json)
    assert (answer.status, answer.error["code"]) == (status, code), answer.content


CHUNKED = "Transfer-Encoding: chunked"
CHUNK = b"2710\r\n" + b"x" * 10_000 + b"\r\n"


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
@pytest.mark.parametrize(
    ("length", "parts"),
    [
        (f"Content-Length: {LIMIT + 1}", [b"x" * (LIMIT + 1)]),
        (f"Content-Length: {9 * LIMIT}", [b"x" * LIMIT] * 9),
        (CHUNKED, [*[CHUNK] * 60, b"0\r\n\r\n"]),
    ],
)
def test_who_sends_it_all_before_reading_sees_why_it_is_refused(
    server: HttpServer, length: str, parts: list[bytes], connection: str
) -> None:
    """A server that closes at once resets the connection, and the answer is lost."""
    with connected(server) as client:
        client.sendall(head(PATH, length, f"Connection: {connection}"))
        for part in parts:
            client.sendall(part)
        answer = read_answer(client)
        check_error(answer, 413, "body_too_large")
        assert str(LIMIT) in answer.error["message"]
        assert answer.headers["connection"] == "close"
        assert client.recv(1) == b""


def test_the_answer_does_not_wait_for_the_body(server: HttpServer) -> None:
    with connected(server) as client:
        client.sendall(head(PATH, f"Content-Length: {10**15}"))
        check_error(read_answer(client), 413, "body_too_large")


def test_who_waits_to_be_told_to_send_is_told_not_to(server: HttpServer) -> None:
    with connected(server) as client:
        client.sendall(head(PATH, f"Content-Length: {LIMIT + 1}", "Expect: 100-continue"))
        check_error(read_answer(client), 413, "body_too_large")
        assert client.recv(1) == b""  # and the connection is over: who knows whether the body comes
    with connected(server) as client:
        client.sendall(head(PATH, "Content-Length: 1", "Expect: 100-continue"))
        assert client.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"{")
        assert read_answer(client).status == 400


@pytest.mark.parametrize(("path", "status"), [("/v1/nowhere", 404), ("/health", 405)])
def test_other_refusals_wait_for_the_body_too(server: HttpServer, path: str, status: int) -> None:
    with connected(server) as client:
        for _ in range(2):  # and then the connection is as good as before
            client.sendall(head(path, "Content-Length: 100000"))
            client.sendall(b"x" * 100_000)
            assert read_answer(client).status == status


def test_it_does_not_read_for_ever(server: HttpServer) -> None:
    with connected(server) as client, pytest.raises(OSError):  # a reset, or a broken pipe
        client.sendall(head(PATH, CHUNKED))
        for _ in range(10 * DISCARDED * LIMIT // len(CHUNK)):
            client.sendall(CHUNK)


def test_what_is_dropped_takes_no_memory(server: HttpServer) -> None:
    def send(count: int) -> None:
        with connected(server) as client:
            client.sendall(head(PATH, CHUNKED))
            for _ in range(count):
                client.sendall(CHUNK)
            check_error(read_answer(client), 413, "body_too_large")

    send(60)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    crowd = [threading.Thread(target=send, args=(DISCARDED * LIMIT // len(CHUNK) - 10,)) for _ in range(10)]
    for one in crowd:
        one.start()
    for one in crowd:
        one.join()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 16_000  # of 32 MB that came


def test_a_client_that_never_sends_the_rest_is_left(monkeypatch: pytest.MonkeyPatch, server: HttpServer) -> None:
    monkeypatch.setattr(body, "PATIENCE_S", 0.01)
    with connected(server) as client:
        client.sendall(head(PATH, f"Content-Length: {LIMIT + 1}"))
        check_error(read_answer(client), 413, "body_too_large")
        assert client.recv(1) == b""


@pytest.mark.parametrize("length", ["5", str(LIMIT + 1)])
def test_the_end_does_not_wait_for_a_body_that_never_comes(length: str) -> None:
    with serving(ENGINE, max_body_bytes=LIMIT, shutdown_timeout_s=0.01) as server, connected(server) as client:
        client.sendall(head(PATH, f"Content-Length: {length}"))
        if length != "5":
            check_error(read_answer(client), 413, "body_too_large")
        else:
            while ask(server, "/live").status != 200:
                pass
        server.begin_end()
        if length == "5":
            check_error(read_answer(client), 503, "unavailable")
        assert client.recv(1) == b""


def test_the_parts_of_an_answer_are_in_order() -> None:
    """On its own: the answer's content goes out before the body's rest is read, its end after."""
    said: list[object] = []

    async def receive() -> Message:
        said.append("read")
        return {"type": "http.request", "body": b"x" * 60, "more_body": said.count("read") < 3}

    async def send(message: Message) -> None:
        said.append((message.get("body"), message.get("more_body")))

    async def answer() -> None:
        one = Body(Headers({"content-length": "180"}), receive, send, most_bytes=100)
        await one.send({"type": "http.response.start", "status": 413})
        await one.send({"type": "http.response.body", "body": b"no"})

    asyncio.run(answer())
    assert said == [(None, None), (b"no", True), "read", "read", "read", (b"", False)]


@pytest.mark.parametrize("length", ["-1", "many", "1" * 30, "", "5, 6"])
def test_a_length_that_is_none(server: HttpServer, length: str) -> None:
    with connected(server) as client:
        client.sendall(head(PATH, f"Content-Length: {length}"))
        assert read_answer(client).status in (400, 413)


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",  # the beginning of TLS
        b"POST /v1/completions HTTP/1.1\r\n\r\n",  # no Host
        b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nbad header\r\n\r\n",
        head(PATH, "Transfer-Encoding: gzip"),
        head(PATH, CHUNKED) + b"zz\r\n",
        head("/" + "x" * 200_000),
    ],
)
def test_what_is_no_http(server: HttpServer, sent: bytes) -> None:
    with connected(server) as client:
        client.sendall(sent)
        answer = read_answer(client)
        Failed.model_validate(answer.json)
        assert (answer.status // 100, answer.error["type"]) == (4, "invalid_request_error") or answer.status == 501
        assert client.recv(1) == b""
    assert ask(server, "/health").status == 200


def test_a_head_without_end(server: HttpServer) -> None:
    """It is sent whole before the answer is read."""
    with connected(server) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: ")
        for _ in range(100):
            client.sendall(b"x" * 100_000)
        check_error(read_answer(client), 431, "head_too_large")


def test_who_connects_and_asks_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardened, "KEEP_ALIVE_S", 0.01)
    with serving(ENGINE) as server, connected(server) as client:
        assert client.recv(1) == b""


def test_nonsense_after_an_answer_is_out(server: HttpServer) -> None:
    """The answer to a request came before its body; then the body is none."""
    with connected(server) as client:
        client.sendall(head("/v1/nowhere", CHUNKED))
        assert read_answer(client).status == 404
        client.sendall(b"zz\r\n")
        assert client.recv(1) == b""
    assert ask(server, "/health").status == 200


def test_an_offer_of_another_protocol_is_passed_over(server: HttpServer, caplog: pytest.LogCaptureFixture) -> None:
    for offer in ("h2c", "websocket"):
        assert ask(server, "/health", headers={"Connection": "Upgrade", "Upgrade": offer}).status == 200
    assert caplog.text == ""


def test_numbers_and_nesting_that_json_should_not_have(server: HttpServer) -> None:
    deep = b"[" * 100_000
    for content in (deep, deep + b"]" * 100_000, b'{"prompt": ' + b"9" * 100_000 + b"}", b'{"a": "\xff"}', b"NaN"):
        answer = ask(server, PATH, content)
        Failed.model_validate(answer.json)
        assert answer.status == 400


def test_errors_do_not_grow_with_what_is_wrong(server: HttpServer) -> None:
    """One for each of so many numbers, of each kind that a prompt may be, would take a gigabyte."""
    for path, fields in ((PATH, "prompt"), ("/v1/chat/completions", "messages"), ("/detokenize", "tokens")):
        before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        answer = ask(server, path, json.dumps({fields: [0.5] * 30_000}).encode())
        assert answer.status == 400
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 8_000, path
