"""The server before the replicas, with replicas that a test controls."""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from replicated_process import wait_for
from starlette.types import Message

from whet.server.http.errors import ApiError
from whet.server.http.settings import Settings
from whet.server.ray_serve.front import Call, ReplicaLost
from whet.server.ray_serve.serving import RayServer
from whet.ui.network import bind

Behaviour = Callable[[Call], AsyncGenerator[list[Message], None]]
HEAD = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}


def body(content: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": content, "more_body": more}


async def whole(call: Call) -> AsyncGenerator[list[Message], None]:
    head = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]}
    yield [head, body(json.dumps({"path": call.head["path"], "body": call.body.decode()}).encode(), more=False)]


async def dies(call: Call) -> AsyncGenerator[list[Message], None]:
    raise ReplicaLost("it died")
    yield []


async def dies_after_its_head(call: Call) -> AsyncGenerator[list[Message], None]:
    yield [HEAD]
    raise ReplicaLost("it died")


async def dies_in_the_stream(call: Call) -> AsyncGenerator[list[Message], None]:
    yield [HEAD, body(b"data: {}\n\n")]
    raise ReplicaLost("it died")


async def is_full(call: Call) -> AsyncGenerator[list[Message], None]:
    raise ApiError(429, "too many wait", code="queue_full")
    yield []


class Played:
    """Replicas that behave as told, one after the other; the last behaviour stays."""

    def __init__(self, *behaviours: Behaviour) -> None:
        self.behaviours = list(behaviours)
        self.calls: list[Call] = []
        self.told = {"r1": "whet:steps_total 2.0\n", "r2": "whet:steps_total 3.0\n"}

    async def ask(self, call: Call) -> AsyncGenerator[list[Message], None]:
        self.calls.append(call)
        behaviour = self.behaviours.pop(0) if len(self.behaviours) > 1 else self.behaviours[0]
        async for messages in behaviour(call):
            yield messages

    async def metrics(self) -> dict[str, str]:
        return self.told


@contextmanager
def started(replicas: Played, **settings: Any) -> Iterator[RayServer]:
    given = Settings(**{"served_names": ("m",), "shutdown_timeout_s": 0.2, **settings})
    server = RayServer(replicas, given, bind("127.0.0.1", 0))
    server.start()
    try:
        yield server
    finally:
        server.stop()


def client_of(server: RayServer) -> httpx.Client:
    return httpx.Client(base_url=server.url, timeout=20, trust_env=False)


@contextmanager
def serving(replicas: Played, **settings: Any) -> Iterator[httpx.Client]:
    with started(replicas, **settings) as server, client_of(server) as client:
        yield client


def test_a_request_reaches_a_replica_and_its_answer_the_client() -> None:
    with serving(Played(whole)) as client:
        answer = client.post("/v1/completions", content=b'{"prompt": "x"}')
    assert answer.json() == {"path": "/v1/completions", "body": '{"prompt": "x"}'}


def test_https_ends_before_the_replicas(tmp_path: Path) -> None:
    trustme = pytest.importorskip("trustme")
    authority, context = trustme.CA(), ssl.create_default_context()
    authority.configure_trust(context)
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "both.pem"))
    replicas = Played(whole)
    with started(replicas, ssl_certfile=str(tmp_path / "both.pem"), api_keys=("one",)) as server:
        assert server.url.startswith("https://")
        with httpx.Client(base_url=server.url, timeout=20, trust_env=False, verify=context) as client:
            headers = {"Authorization": "Bearer one"}
            answer = client.post("/v1/completions", content=b'{"prompt": "x"}', headers=headers)
            assert client.get("/health", headers=headers).json() == {"status": "ok", "replicas": 2}
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://{server.host}:{server.port}/health", trust_env=False)
    assert answer.json()["body"] == '{"prompt": "x"}'
    assert len(replicas.calls) == 1


@pytest.mark.parametrize("death", [dies, dies_after_its_head])
def test_what_was_not_begun_is_asked_again(death: Behaviour) -> None:
    replicas = Played(death, whole)
    with serving(replicas) as client:
        assert client.post("/v1/completions", content=b'{"prompt": "x"}').status_code == 200
        counts = client.get("/metrics").text
    assert [call.body for call in replicas.calls] == [b'{"prompt": "x"}'] * 2
    assert "whet:ray_retries_total 1.0" in counts


def test_a_request_that_ends_every_replica_is_given_up() -> None:
    replicas = Played(dies)
    with serving(replicas) as client:
        answer = client.post("/v1/completions", content=b"{}")
    assert (answer.status_code, len(replicas.calls)) == (500, 3)
    assert "3 replicas died" in answer.json()["error"]["message"]


def test_a_stream_that_had_begun_ends_with_an_error_event() -> None:
    replicas = Played(dies_in_the_stream)
    with serving(replicas) as client:
        answer = client.post("/v1/completions", content=b"{}")
    first, error, done, rest = answer.text.split("\n\n")
    assert (answer.status_code, first, done, rest) == (200, "data: {}", "data: [DONE]", "")
    assert "died" in json.loads(error.removeprefix("data: "))["error"]["message"]
    assert len(replicas.calls) == 1


def test_errors_of_the_router_are_answered() -> None:
    with serving(Played(is_full)) as client:
        assert client.post("/v1/completions", content=b"{}").json()["error"]["code"] == "queue_full"


def test_a_client_that_leaves_cancels_its_request() -> None:
    is_closed = []

    async def endless(call: Call) -> AsyncGenerator[list[Message], None]:
        try:
            yield [HEAD, body(b"data: {}\n\n")]
            await asyncio.sleep(60)
        finally:
            is_closed.append(True)

    with serving(Played(endless)) as client:
        with client.stream("POST", "/v1/completions", content=b"{}") as answer:
            next(answer.iter_raw())
        for _ in range(100):
            if is_closed:
                break
            client.get("/health")
        assert is_closed


def test_the_key_is_checked_here_and_replicas_do_not_learn_it() -> None:
    replicas = Played(whole)
    with serving(replicas, api_keys=("one", "two")) as client:
        assert client.post("/v1/completions", content=b'{"prompt": "x"}').status_code == 401
        assert not replicas.calls
        for key in ("one", "one", "two"):
            headers = {"Authorization": f"Bearer {key}"}
            assert client.post("/v1/completions", content=b'{"prompt": "x"}', headers=headers).status_code == 200
    assert all(name != b"authorization" for call in replicas.calls for name, _ in call.head["headers"])
    salts = [call.head["whet.key"] for call in replicas.calls]
    assert salts[0] == salts[1] != salts[2]
    assert [call.key for call in replicas.calls[:2]] == [replicas.calls[0].key] * 2 != [replicas.calls[2].key] * 2
    assert not any(secret in repr(call.head) for call in replicas.calls for secret in ("'one'", "'two'", "Bearer"))


def test_a_client_can_name_its_session() -> None:
    replicas = Played(whole)
    with serving(replicas) as client:
        for prompt in (b'{"prompt": "x"}', b'{"prompt": "y"}'):
            client.post("/v1/completions", content=prompt, headers={"x-session-id": "s"})
    assert [call.key for call in replicas.calls] == ["s", "s"]


def test_large_bodies_are_refused_before_a_replica_sees_them() -> None:
    replicas = Played(whole)
    with serving(replicas, max_body_bytes=100) as client:
        assert client.post("/v1/completions", content=b"x" * 101).status_code == 413
    assert not replicas.calls


def test_metrics_are_those_of_all_replicas() -> None:
    with serving(Played(whole)) as client:
        text = client.get("/metrics").text
    assert 'whet:steps_total{replica="r1"} 2.0' in text
    assert 'whet:steps_total{replica="r2"} 3.0' in text
    assert text.count("# TYPE whet:steps") == 1


def test_health_is_that_of_all_replicas() -> None:
    replicas = Played(whole)
    with serving(replicas) as client:
        assert client.get("/health").json() == {"status": "ok", "replicas": 2}
        replicas.told = {}
        assert client.get("/health").status_code == 503


def test_the_end_cuts_what_takes_too_long() -> None:
    async def endless(call: Call) -> AsyncGenerator[list[Message], None]:
        if b"begun" in call.body:
            yield [HEAD, body(b"data: {}\n\n")]
        await asyncio.sleep(60)

    replicas = Played(endless)
    with (
        started(replicas, shutdown_timeout_s=0.5) as server,
        ThreadPoolExecutor(1) as other,
        client_of(server) as client,
        client.stream("POST", "/v1/completions", content=b"begun") as answer,
    ):
        pieces = answer.iter_raw()
        assert next(pieces) == b"data: {}\n\n"
        waiting = other.submit(client.post, "/v1/completions", content=b"{}")
        wait_for(lambda: len(replicas.calls) == 2)
        server.begin_end()
        error, done, rest = b"".join(pieces).split(b"\n\n")
        refused = waiting.result(20)
    assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "unavailable"
    assert (done, rest) == (b"data: [DONE]", b"")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")


def test_a_body_that_ends_early_reaches_no_replica() -> None:
    replicas = Played(whole)
    with started(replicas) as server:
        with socket.create_connection((server.host, server.port)) as client:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{}")
            wait_for(lambda: server._lifecycle._num_open == 1)
        wait_for(lambda: server._lifecycle._num_open == 0)
    assert not replicas.calls
