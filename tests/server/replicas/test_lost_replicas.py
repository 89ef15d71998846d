"""What a client of the proxy sees while replicas end, break off, refuse or fail."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from asking import Answer
from fake_engine import TOKENIZER
from replicated import BODY, PATH, TEXT, Replicated, asking, begun, held, last_event, own, replicated
from replicated_process import wait_for

from whet.ui.network import bind_file

DIED = "replica_died"


@pytest.mark.parametrize("streams", [False, True])
def test_a_request_whose_replica_dies_before_its_answer_is_answered_by_another(
    others: ThreadPoolExecutor, streams: bool
) -> None:
    with replicated() as proxy:
        number = own(proxy)
        held(proxy)
        waiting = [others.submit(asking, proxy, PATH, {**BODY, "stream": streams}) for _ in range(2)]
        wait_for(lambda: proxy.num_running == 2)
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
        wait_for(lambda: proxy.num_running == 12)
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


def test_an_engine_that_fails_is_no_replica_that_dies() -> None:
    with replicated(1) as proxy:
        proxy.engines[0].failing = 0
        answer = asking(proxy, PATH, BODY)
        assert (answer.status, answer.error["code"]) == (500, "engine_error")
        proxy.engines[0].failing = 3
        assert asking(proxy, PATH, {**BODY, "stream": True}).events[-1]["error"]["code"] == "engine_error"
        assert proxy.fleet.counts.sent_again == 0
