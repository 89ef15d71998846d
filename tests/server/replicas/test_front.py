"""What a client of the proxy sees: the same as of one server."""

import http.client
import json
import re
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from asking import Answer
from prometheus_client.parser import text_string_to_metric_families
from replicated import BODY, PATH, TEXT, Replicated, asking, begun, held, last_event, own, replicated
from replicated_process import wait_for

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


def test_a_client_that_leaves_ends_its_work() -> None:
    with replicated() as proxy:
        held(proxy)
        for streams in (False, True):
            connection = http.client.HTTPConnection(proxy.host, proxy.port, timeout=20)
            connection.request(
                "POST", PATH, json.dumps({**BODY, "stream": streams}), {"Content-Type": "application/json"}
            )
            wait_for(lambda: proxy.num_running == 1)
            connection.close()
            wait_for(lambda: not proxy.num_running)
            wait_for(lambda: not proxy.num_open)
        assert (proxy.num_running, proxy.num_open, proxy.fleet.counts.sent_again) == (0, 0, 0)


def test_a_client_that_does_not_read_is_cut_off_and_its_work_with_it() -> None:
    with replicated(write_timeout_s=0.3) as proxy, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((proxy.host, proxy.port))
        body = json.dumps({"prompt": "x", "max_tokens": 500, "n": 64, "stream": True})
        head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        wait_for(lambda: sum(len(engine.asked) for engine in proxy.engines) == 64, 60)
        wait_for(lambda: not proxy.num_running)
        wait_for(lambda: not proxy.num_open)
        assert (proxy.num_running, proxy.num_open, proxy.fleet.counts.sent_again) == (0, 0, 0)


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
            wait_for(lambda: proxy.num_running == 2)
            proxy.begin_end()
            answer = whole.result(20)
            assert (answer.status, answer.error["code"]) == (503, "unavailable")
            assert last_event(response)["error"]["code"] == "unavailable"


def test_the_end_waits_for_what_runs(others: ThreadPoolExecutor) -> None:
    with replicated(shutdown_timeout_s=60) as proxy:
        held(proxy)
        whole = others.submit(asking, proxy, PATH, BODY)
        wait_for(lambda: proxy.num_running == 1)
        proxy.begin_end()
        wait_for(lambda: proxy._lifecycle.phase == "draining")
        for engine in proxy.engines:
            engine.let_go()
        assert whole.result(30).json["choices"][0]["text"] == TEXT
