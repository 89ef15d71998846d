"""What a client of the proxy sees: the same as of one server, whichever replicas end, refuse or are slow."""

import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from asking import Answer, ask
from fake_engine import TOKENIZER, WORD_IDS
from prometheus_client.parser import text_string_to_metric_families
from replicated import Replicated, replicated

from whet.ui.network import bind_file

PATH = "/v1/completions"
BODY = {"prompt": "Once", "max_tokens": 10}
TEXT = TOKENIZER.decode(WORD_IDS[:10])
DIED = "replica_died"


@pytest.fixture
def others() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(24) as others:
        yield others


def own(proxy: Replicated, body: dict[str, Any] = BODY) -> int:
    """The number of the replica that a request goes to while all are idle."""
    before = [len(engine.asked) for engine in proxy.engines]
    assert ask(proxy, PATH, body).status == 200  # type: ignore[arg-type]
    [number] = [i for i, engine in enumerate(proxy.engines) if len(engine.asked) > before[i]]
    return number


def asking(proxy: Replicated, path: str, body: object = None, **more: Any) -> Answer:
    return ask(proxy, path, body, **more)  # type: ignore[arg-type]


def held(proxy: Replicated) -> None:
    for engine in proxy.engines:
        engine.held = True


def wait_for(condition: Any, limit_s: float = 30.0) -> None:
    ends_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < ends_s, "waited in vain"
        time.sleep(0.005)


VOLATILE = re.compile(rb'"(id|created)":\s*("[^"]*"|\d+)|data: \{"id[^}]*\}')


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (PATH, BODY),
        (PATH, {**BODY, "stream": True}),
        (PATH, {**BODY, "stream": True, "n": 2, "stream_options": {"include_usage": True}}),
        (PATH, {**BODY, "temperature": "hot"}),
        (PATH, b"{"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}),
        ("/tokenize", {"prompt": "The torch.nn module é"}),
        ("/v1/models", None),
        ("/v1/models/nothing", None),
        ("/v1/nowhere?a=b%20c", None),
        ("/v2/models/x/infer", {"inputs": []}),
        ("/version", None),
        ("/", None),
        ("/openapi.json", None),
    ],
)
def test_answers_are_those_of_a_replica(path: str, body: object) -> None:
    with replicated(1) as proxy:
        found, wanted = asking(proxy, path, body), over_unix(proxy, path, body)
        assert found.status == wanted.status
        assert VOLATILE.sub(b"", found.content) == VOLATILE.sub(b"", wanted.content)
        for headers in (found.headers, wanted.headers):
            headers.pop("date", None)
            headers.pop("connection", None)
        assert found.headers == wanted.headers


class OverUnix(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


def over_unix(proxy: Replicated, path: str, body: object) -> Answer:
    """The answer of the first replica, asked directly."""
    connection = OverUnix(proxy.servers[0].host)
    content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    headers = {} if body is None else {"Content-Type": "application/json"}
    try:
        connection.request("GET" if body is None else "POST", path, content, headers)
        response = connection.getresponse()
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()


def test_a_common_beginning_meets_its_replica_again() -> None:
    with replicated(3) as proxy:
        for conversation in range(6):
            start = f"Conversation {conversation}: " + "a long instruction for the model. " * 20
            places = {own(proxy, {"prompt": start + "word " * turn, "max_tokens": 1}) for turn in range(4)}
            assert len(places) == 1
        assert proxy.fleet.counts.chosen == {"prefix": 18, "ring": 6, "load": 0}


@pytest.mark.parametrize("streams", [False, True])
def test_a_request_whose_replica_dies_before_its_answer_is_answered_by_another(
    others: ThreadPoolExecutor, streams: bool
) -> None:
    with replicated() as proxy:
        number = own(proxy)
        held(proxy)
        waiting = [others.submit(asking, proxy, PATH, {**BODY, "stream": streams}) for _ in range(2)]
        wait_for(lambda: sum(len(engine.running) for engine in proxy.engines) == 2)
        on_it = len(proxy.engines[number].running)
        assert on_it
        proxy.kill(number)
        proxy.engines[1 - number].let_go()
        for one in waiting:
            answer = one.result(20)
            assert answer.status == 200
            assert text_of(answer, streams) == TEXT
        assert proxy.fleet.counts.sent_again == on_it


def text_of(answer: Answer, streams: bool) -> str:
    if not streams:
        return str(answer.json["choices"][0]["text"])
    return "".join(event["choices"][0]["text"] for event in answer.events)


@contextmanager
def begun(proxy: Replicated, others: ThreadPoolExecutor, body: dict[str, Any]) -> Iterator[http.client.HTTPResponse]:
    """A stream of which three tokens have arrived, and which is held then."""
    connection = http.client.HTTPConnection(proxy.host, proxy.port, timeout=30)
    before = sum(len(engine.running) for engine in proxy.engines)
    connection.request("POST", PATH, json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
    waiting = others.submit(connection.getresponse)
    wait_for(lambda: sum(len(engine.running) for engine in proxy.engines) == before + 1)
    for engine in proxy.engines:
        engine.step(3)
    response = waiting.result(30)
    text, wanted = "", TOKENIZER.decode(WORD_IDS[:3])
    while text != wanted:
        line = response.readline()
        if line.startswith(b"data: "):
            text += json.loads(line.removeprefix(b"data: "))["choices"][0]["text"]
    yield response
    response.close()
    connection.close()


def last_event(response: http.client.HTTPResponse) -> Any:
    lines = [line for line in response.read().split(b"\n") if line.startswith(b"data: ")]
    assert lines[-1] == b"data: [DONE]"
    return json.loads(lines[-2].removeprefix(b"data: "))


def test_a_stream_whose_replica_dies_ends_with_an_error(others: ThreadPoolExecutor) -> None:
    with replicated() as proxy:
        number = own(proxy)
        held(proxy)
        with begun(proxy, others, BODY) as response:
            proxy.kill(number)
            assert last_event(response)["error"]["code"] == DIED
        assert (proxy.fleet.counts.broken_streams, proxy.fleet.counts.sent_again) == (1, 0)


def test_a_request_that_ends_its_replicas_is_answered_after_the_second_one(others: ThreadPoolExecutor) -> None:
    with replicated(4) as proxy:
        held(proxy)
        poison = {"prompt": "the poison", "max_tokens": 10}
        ids = TOKENIZER.encode("the poison")
        killed: list[int] = []
        is_over = threading.Event()

        def watch() -> None:
            while not is_over.wait(0.005):
                for number, engine in enumerate(proxy.engines):
                    if number not in killed and any(one.prompt_ids[-len(ids) :] == ids for one in engine.asked):
                        killed.append(number)
                        proxy.kill(number)

        watching = threading.Thread(target=watch)
        watching.start()
        innocent = [others.submit(asking, proxy, PATH, {"prompt": f"{i} good", "max_tokens": 4}) for i in range(12)]
        wait_for(lambda: sum(len(engine.running) for engine in proxy.engines) == 12)
        answer = asking(proxy, PATH, poison)
        is_over.set()
        watching.join()
        assert (answer.status, answer.error["code"]) == (500, DIED)
        assert "2 replicas ended while they worked on this request" in answer.error["message"]
        assert len(killed) == 2
        for engine in proxy.engines:
            engine.let_go()
        assert [one.result(30).status for one in innocent] == [200] * 12
        assert proxy.fleet.counts.given_up == 1


def test_what_changes_a_state_is_not_sent_twice(tmp_path: Path) -> None:
    with replicated(2) as proxy, bind_file(str(tmp_path / "dying")) as bound:
        bound.listen()
        for number in (0, 1):
            proxy.put(number, str(tmp_path / "dying"))
        seen = []

        def die() -> None:
            client, _ = bound.accept()
            seen.append(client.recv(2**16))
            for one in proxy.upstreams[2:]:
                proxy.do(one.ended.set)
            client.close()

        dying = threading.Thread(target=die)
        dying.start()
        answer = asking(proxy, "/v1/states/notes", {"prompt": "x"})
        dying.join()
        assert (answer.status, answer.error["code"]) == (503, DIED)
        assert len(seen) == 1 and seen[0].startswith(b"POST /v1/states/notes HTTP/1.1")
        assert proxy.fleet.counts.sent_again == 0


@contextmanager
def breaking(proxy: Replicated, path: Path, answer: bytes, *, dies: bool) -> Iterator[list[bytes]]:
    """Replace all replicas by what sends so much of an answer and breaks off, each time. Yield its requests."""
    seen: list[bytes] = []
    with bind_file(str(path)) as bound:
        bound.listen()
        for number in range(len(proxy.engines)):
            proxy.put(number, str(path))
        ones = proxy.upstreams[-len(proxy.engines) :]

        def serve() -> None:
            while True:
                client, _ = bound.accept()
                with client:
                    seen.append(client.recv(2**16))
                    if not seen[-1]:
                        return
                    client.sendall(answer)
                    if dies:
                        for one in ones:
                            proxy.do(one.ended.set)

        serving = threading.Thread(target=serve)
        serving.start()
        yield seen
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(str(path))
        serving.join(30)
        seen.pop()


def test_a_living_replica_that_breaks_off_is_asked_twice_at_most(tmp_path: Path) -> None:
    with replicated(2) as proxy, breaking(proxy, tmp_path / "breaking", b"", dies=False) as seen:
        answer = asking(proxy, PATH, BODY)
        assert (answer.status, answer.error["code"]) == (500, "connection_broken")
        assert len(seen) == 2
        assert (proxy.fleet.counts.given_up, proxy.fleet.counts.sent_again) == (1, 1)


CHUNKED = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n6\r\n{"a": \r\n'
STATED = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 3000000\r\n\r\n{"a": '


@pytest.mark.parametrize("answer", [CHUNKED, STATED], ids=["chunked", "stated"])
@pytest.mark.parametrize("dies", [False, True])
def test_an_answer_that_is_no_stream_is_broken_off_and_never_ended(tmp_path: Path, answer: bytes, dies: bool) -> None:
    with replicated(1) as proxy, breaking(proxy, tmp_path / "breaking", answer, dies=dies) as seen:
        connection = http.client.HTTPConnection(proxy.host, proxy.port, timeout=30)
        connection.request("POST", PATH, json.dumps(BODY), {"Content-Type": "application/json"})
        with connection.getresponse() as response, pytest.raises(http.client.IncompleteRead) as broken:
            response.read()
        connection.close()
        assert broken.value.partial == b'{"a": '
        assert len(seen) == 1


def test_a_client_that_leaves_ends_its_work() -> None:
    with replicated() as proxy:
        held(proxy)
        for streams in (False, True):
            connection = http.client.HTTPConnection(proxy.host, proxy.port, timeout=20)
            connection.request(
                "POST", PATH, json.dumps({**BODY, "stream": streams}), {"Content-Type": "application/json"}
            )
            wait_for(lambda: sum(len(engine.running) for engine in proxy.engines) == 1)
            connection.close()
            wait_for(lambda: not any(engine.running for engine in proxy.engines))
            wait_for(lambda: not any(one.num_open for one in proxy.upstreams))


def test_a_client_that_does_not_read_is_cut_off_and_its_work_with_it() -> None:
    with replicated(write_timeout_s=0.3) as proxy, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((proxy.host, proxy.port))
        body = json.dumps({"prompt": "x", "max_tokens": 500, "n": 64, "stream": True})
        head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        wait_for(lambda: sum(len(engine.asked) for engine in proxy.engines) == 64, 60)
        wait_for(lambda: not any(engine.running for engine in proxy.engines), 60)
        wait_for(lambda: not any(one.num_open for one in proxy.upstreams), 60)


def test_while_none_runs_requests_wait_and_then_are_refused(others: ThreadPoolExecutor) -> None:
    with replicated(1, patience_s=60.0) as proxy:
        proxy.kill(0)
        wait_for(lambda: not proxy.fleet.taking)
        assert asking(proxy, "/health").status == 503
        assert asking(proxy, "/v2/health/live").status == 200
        waiting = others.submit(asking, proxy, PATH, BODY)
        time.sleep(0.1)
        proxy.revive(0)
        assert waiting.result(20).status == 200
        assert asking(proxy, "/health").json == {"status": "ok", "replicas": 1, "replicas_ready": 1}
    with replicated(1, patience_s=0.1) as proxy:
        proxy.kill(0)
        wait_for(lambda: not proxy.fleet.taking)
        answer = asking(proxy, PATH, BODY)
        assert (answer.status, answer.error["code"], answer.headers["retry-after"]) == (503, "unavailable", "1")


def test_what_one_replica_has_no_room_for_another_takes() -> None:
    with replicated() as proxy:
        number = own(proxy)
        proxy.engines[number].capacity = 0
        assert asking(proxy, PATH, BODY).status == 200
        proxy.engines[1 - number].capacity = 0
        answer = asking(proxy, PATH, BODY)
        assert (answer.status, answer.error["code"]) == (429, "queue_full")


def samples(proxy: Replicated, name: str) -> dict[str, float]:
    """By the number of the replica."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(asking(proxy, "/metrics").content.decode()):
        for sample in family.samples:
            if sample.name == name:
                number = sample.labels.get("replica", "")
                found[number] = found.get(number, 0.0) + sample.value
    return found


def test_metrics_add_up_to_what_was_sent() -> None:
    with replicated(3) as proxy:
        for i in range(30):
            assert asking(proxy, PATH, {"prompt": f"{i} times", "max_tokens": i % 5 + 1}).status == 200
        num_tokens = sum(i % 5 + 1 for i in range(30))
        assert sum(samples(proxy, "whet:generation_tokens_total").values()) == num_tokens
        made = {str(i): float(engine.num_generated) for i, engine in enumerate(proxy.engines)}
        assert samples(proxy, "whet:generation_tokens_total") == made
        assert sum(samples(proxy, "whet:request_success_total").values()) == 30
        assert sum(samples(proxy, "whet:e2e_request_latency_seconds_count").values()) == 30
        assert sum(samples(proxy, "whet:proxy_requests_total").values()) == 30
        assert samples(proxy, "whet:replica_up") == {"0": 1.0, "1": 1.0, "2": 1.0}
        live = asking(proxy, "/live").json
        assert (live["generation_tokens_total"], live["max_num_seqs"]) == (num_tokens, 3 * 64)
        assert (live["kv_cache_usage"], live["model"], live["phase"]) == (0.25, "fake", "ready")
        proxy.kill(1)
        wait_for(lambda: samples(proxy, "whet:replica_up") == {"0": 1.0, "1": 0.0, "2": 1.0})


def test_keys_are_checked_and_keep_caches_apart() -> None:
    with replicated(1, api_keys=("one", "two")) as proxy:
        assert asking(proxy, PATH, BODY).status == 401
        assert asking(proxy, "/live").status == 401
        for key in ("one", "two", "one"):
            headers = {"Authorization": f"Bearer {key}"}
            assert asking(proxy, PATH, BODY, headers=headers).status == 200
            assert asking(proxy, "/live", headers=headers).status == 200
        first, second, third = [one.cache_salt for one in proxy.engines[0].asked]
        assert first == third != second and first


def test_foreign_hosts_large_bodies_and_origins_are_handled_as_by_one_server() -> None:
    with replicated(1, max_body_bytes=2000, cors_origins=("http://a.org",)) as proxy:
        assert asking(proxy, PATH, BODY, headers={"Host": "foreign.org"}).status == 421
        assert asking(proxy, PATH, {"prompt": "x" * 3000}).status == 413
        answer = asking(proxy, PATH, BODY, headers={"Origin": "http://a.org"})
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, "http://a.org")
        assert (
            "access-control-allow-origin" not in asking(proxy, PATH, BODY, headers={"Origin": "http://b.org"}).headers
        )


def test_a_large_body_goes_through() -> None:
    with replicated(1) as proxy:
        ids = list(range(100)) * 5
        body = {"prompt": ids, "max_tokens": 2, "user": "x" * 10**6}
        assert asking(proxy, PATH, body).status == 200
        assert proxy.engines[0].asked[-1].prompt_ids == ids


def test_the_end_cuts_what_takes_too_long(others: ThreadPoolExecutor) -> None:
    with replicated(shutdown_timeout_s=0.5) as proxy:
        held(proxy)
        with begun(proxy, others, BODY) as response:
            whole = others.submit(asking, proxy, PATH, {**BODY, "prompt": "Twice"})
            wait_for(lambda: sum(len(engine.running) for engine in proxy.engines) == 2)
            proxy.begin_end()
            answer = whole.result(20)
            assert (answer.status, answer.error["code"]) == (503, "unavailable")
            assert last_event(response)["error"]["code"] == "unavailable"


def test_the_end_waits_for_what_runs(others: ThreadPoolExecutor) -> None:
    with replicated(shutdown_timeout_s=60) as proxy:
        held(proxy)
        whole = others.submit(asking, proxy, PATH, BODY)
        wait_for(lambda: sum(len(engine.running) for engine in proxy.engines) == 1)
        proxy.begin_end()
        wait_for(lambda: proxy._lifecycle.phase == "draining")
        for engine in proxy.engines:
            engine.let_go()
        assert whole.result(30).json["choices"][0]["text"] == TEXT


def test_an_engine_that_fails_is_no_replica_that_dies() -> None:
    with replicated(1) as proxy:
        proxy.engines[0].failing = 0
        answer = asking(proxy, PATH, BODY)
        assert (answer.status, answer.error["code"]) == (500, "engine_error")
        proxy.engines[0].failing = 3
        assert asking(proxy, PATH, {**BODY, "stream": True}).events[-1]["error"]["code"] == "engine_error"
        assert proxy.fleet.counts.sent_again == 0
