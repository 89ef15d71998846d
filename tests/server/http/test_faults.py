"""Clients that leave, engines that fail, too much at once, and the end of the server."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from asking import Answer, ask, serving
from fake_engine import TOKENIZER, WORD_IDS, FakeEngine

from whet.errors import OptionError
from whet.server.http.run import HttpServer
from whet.server.http.settings import Settings
from whet.ui.network import bind

PATH = "/v1/completions"
BODY = {"prompt": "Once", "max_tokens": 10}


ENGINE = FakeEngine()


@pytest.fixture(scope="module")
def server() -> Iterator[HttpServer]:
    with serving(ENGINE) as server:
        yield server


@pytest.fixture(autouse=True)
def engine() -> Iterator[FakeEngine]:
    ENGINE.reset()
    ENGINE.held = True
    yield ENGINE
    ENGINE.let_go()


@pytest.fixture
def others() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as others:
        yield others


def open_stream(server: HttpServer, **body: Any) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection(server.host, server.port, timeout=20)
    content = json.dumps({**BODY, **body})
    connection.request("POST", PATH, content, {"Content-Type": "application/json"})
    return connection, connection.getresponse()


def send_and_leave(server: HttpServer, body: dict[str, Any], engine: FakeEngine, count: int) -> None:
    """Leave once the engine works on it."""
    content = json.dumps(body).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
    with socket.create_connection((server.host, server.port), timeout=20) as client:
        client.sendall(f"{head}{len(content)}\r\n\r\n".encode() + content)
        engine.wait_running(count)


@pytest.mark.parametrize("body", [{}, {"stream": True}, {"n": 3}, {"n": 3, "stream": True}])
def test_a_client_that_leaves_before_the_first_token(
    server: HttpServer, engine: FakeEngine, body: dict[str, Any]
) -> None:
    send_and_leave(server, {**BODY, **body}, engine, body.get("n", 1))
    engine.wait_idle()
    assert len(engine.aborted) == body.get("n", 1)


def test_a_client_that_leaves_in_the_middle(server: HttpServer, engine: FakeEngine, others: ThreadPoolExecutor) -> None:
    opening = others.submit(open_stream, server, stream=True)
    engine.wait_running(1)
    engine.step(2)
    connection, response = opening.result()
    assert response.readline().startswith(b"data: ")
    response.close()
    connection.close()
    engine.wait_running(0)
    assert engine.aborted == ["request-0"]


def test_one_that_leaves_does_not_harm_the_others(
    server: HttpServer, engine: FakeEngine, others: ThreadPoolExecutor
) -> None:
    staying = others.submit(ask, server, PATH, BODY)
    engine.wait_running(1)
    send_and_leave(server, BODY, engine, 2)
    engine.wait_running(1)
    engine.let_go()
    assert staying.result().json["choices"][0]["text"] == TOKENIZER.decode(WORD_IDS[:10])


@pytest.mark.parametrize("streams", [False, True])
def test_the_engine_fails_before_the_first_token(server: HttpServer, engine: FakeEngine, streams: bool) -> None:
    engine.failing, engine.held = 0, False
    answer = ask(server, PATH, {**BODY, "stream": streams})
    assert (answer.status, answer.error["code"]) == (500, "engine_error")
    assert answer.error["message"] == "the fake fails on purpose"


def test_the_engine_fails_in_the_middle(server: HttpServer, engine: FakeEngine) -> None:
    engine.failing, engine.held = 3, False
    assert ask(server, PATH, BODY).status == 500
    answer = ask(server, PATH, {**BODY, "stream": True, "n": 2})
    *chunks, last = answer.events
    assert last["error"]["message"] == "the fake fails on purpose"
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
    assert engine.running == {}


def test_overload_is_refused_at_once_and_harms_nobody(
    server: HttpServer, engine: FakeEngine, others: ThreadPoolExecutor
) -> None:
    engine.capacity = 4
    inside = [others.submit(ask, server, PATH, BODY) for _ in range(4)]
    engine.wait_running(4)
    outside = [others.submit(ask, server, PATH, {**BODY, "stream": number % 2 == 0}) for number in range(10)]
    answers = [one.result() for one in outside]
    assert {answer.status for answer in answers} == {429}
    assert {answer.headers["retry-after"] for answer in answers} == {"1"}
    assert answers[0].error["type"] == "rate_limit_error"
    engine.let_go()
    assert [one.result().status for one in inside] == [200] * 4
    assert ask(server, PATH, BODY).status == 200
    assert engine.num_reserved == 0


def test_a_full_queue_refuses_before_it_tokenises(
    server: HttpServer, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.capacity = 0
    monkeypatch.setattr(engine.tokenizer, "encode", lambda *_: pytest.fail("tokenised"))
    monkeypatch.setattr(engine.tokenizer, "chat", lambda *_: pytest.fail("tokenised"))
    assert ask(server, PATH, BODY).status == 429
    assert ask(server, "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}).status == 429


def test_several_choices_are_queued_together_or_not_at_all(server: HttpServer, engine: FakeEngine) -> None:
    engine.capacity, engine.held = 3, False
    assert ask(server, PATH, {**BODY, "n": 4}).status == 429
    assert (engine.asked, engine.num_reserved) == ([], 0)
    assert ask(server, PATH, {**BODY, "n": 3}).status == 200


def end(server: HttpServer) -> None:
    server.begin_end()
    deadline = time.monotonic() + 10
    while ask(server, "/health").status == 200 and time.monotonic() < deadline:
        pass


def test_the_end_waits_for_what_runs_and_takes_nothing_new(others: ThreadPoolExecutor) -> None:
    engine = FakeEngine()
    engine.held = True
    with serving(engine, shutdown_timeout_s=20) as server:
        running = [others.submit(ask, server, PATH, {**BODY, "stream": streams}) for streams in (False, True)]
        engine.wait_running(2)
        end(server)
        refused = ask(server, PATH, BODY)
        assert (refused.status, refused.error["type"]) == (503, "service_unavailable_error")
        assert (refused.headers["retry-after"], ask(server, "/health").status) == ("1", 503)
        engine.let_go()
    whole, streamed = (one.result() for one in running)
    text = TOKENIZER.decode(WORD_IDS[:10])
    assert (whole.status, whole.json["choices"][0]["text"]) == (200, text)
    assert "".join(event["choices"][0]["text"] for event in streamed.events) == text
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((server.host, server.port), timeout=2)


def test_the_end_cuts_what_takes_too_long(others: ThreadPoolExecutor) -> None:
    engine = FakeEngine()
    engine.held = True
    with serving(engine, shutdown_timeout_s=0.05) as server:
        running = [others.submit(ask, server, PATH, {**BODY, "stream": streams}) for streams in (False, True)]
        engine.wait_running(2)
        engine.step()
    whole, streamed = (one.result() for one in running)
    assert (whole.status, "the server is shutting down" in whole.error["message"]) == (503, True)
    first, last = streamed.events
    assert first["choices"][0]["finish_reason"] is None
    assert "the server is shutting down" in last["error"]["message"]
    assert sorted(engine.aborted) == ["request-0", "request-1"]


def test_a_slow_reader_loses_nothing(engine: FakeEngine, others: ThreadPoolExecutor) -> None:
    engine.max_model_len = 5000
    with serving(engine) as server:
        opening = others.submit(open_stream, server, stream=True, max_tokens=4000)
        engine.wait_running(1)
        engine.let_go()
        connection, response = opening.result()
        content = b""
        while part := response.read1(1000):
            content += part
        connection.close()
    events = Answer(200, {}, content).events
    wanted = TOKENIZER.decode((WORD_IDS * (4000 // len(WORD_IDS) + 1))[:4000])
    assert "".join(event["choices"][0]["text"] for event in events) == wanted


def test_nothing_is_left_after_a_crowd_that_comes_and_goes(server: HttpServer, engine: FakeEngine) -> None:
    engine.held = False
    before = threading.active_count()
    bodies = [BODY, {**BODY, "stream": True}, {**BODY, "prompt": "x " * 2000}, {**BODY, "n": 5}, {**BODY, "n": 10**6}]

    def one(number: int) -> int:
        body = bodies[number % len(bodies)]
        if number % 7 == 0:
            send_and_leave_early(server, body)
            return 0
        return ask(server, PATH, body).status

    with ThreadPoolExecutor(8) as crowd:
        statuses = list(crowd.map(one, range(150)))
    assert set(statuses) == {0, 200, 400}
    engine.wait_idle()
    assert ask(server, PATH, BODY).status == 200
    deadline = time.monotonic() + 10
    while threading.active_count() > before + 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before + 2  # the two that tokenise


def send_and_leave_early(server: HttpServer, body: dict[str, Any]) -> None:
    content = json.dumps(body).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
    with socket.create_connection((server.host, server.port), timeout=20) as client:
        client.sendall(f"{head}{len(content)}\r\n\r\n".encode() + content)


def test_a_port_that_another_process_has_taken_meanwhile(engine: FakeEngine) -> None:
    first = bind("127.0.0.1", 0)
    second = bind("127.0.0.1", first.getsockname()[1])
    first.listen()
    with first, second, pytest.raises(OptionError, match="is in use"):
        HttpServer(engine, Settings(served_names=("fake",)), second)  # type: ignore[arg-type]
