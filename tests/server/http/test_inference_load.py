"""Several clients of one artefact: shared calls, overload, clients that leave, and the server's end."""

import json
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from asking import ask
from functions_served import DOUBLED, INPUT, infer, refusal, serving_functions
from small_programs import save, small
from torch import Tensor

from whet.server.artefacts.directories import ArtefactSource
from whet.server.opening import Given, opened
from whet.server.options import EngineOptions


class Held:
    """Doubles, once it is let go; counts the samples of its calls."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Event()
        self.sizes: list[int] = []

    def __call__(self, x: Tensor) -> Tensor:
        self.begun.set()
        assert self.gate.wait(20)
        self.sizes.append(len(x))
        return x * 2

    def hold(self) -> None:
        self.gate.clear()
        self.begun.clear()
        self.sizes.clear()


def one(value: float, rows: int = 1) -> dict[str, Any]:
    return {"inputs": [{**INPUT, "shape": [rows, 3], "data": [value] * 3 * rows}]}


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def test_requests_of_several_clients_share_a_call() -> None:
    held = Held()
    with serving_functions({"held": (held, DOUBLED)}) as server, ThreadPoolExecutor(8) as clients:
        held.hold()
        path = "/v2/models/held/infer"
        answers = [clients.submit(infer, server, one(0.5), path)]
        assert held.begun.wait(10)
        answers += [clients.submit(infer, server, one(float(i), rows=1 + i % 3), path) for i in range(1, 7)]
        wait_for(lambda: b'samples_waiting{model_name="held"} 12.0' in ask(server, "/metrics").content)
        held.gate.set()
        for value, answer in zip([0.5, 1, 2, 3, 4, 5, 6], answers, strict=True):
            data = answer.result().json["outputs"][0]["data"]
            assert set(data) == {2 * value}
        assert held.sizes == [1, 12]


def test_too_much_waits() -> None:
    held = Held()
    with serving_functions({"held": (held, DOUBLED)}, max_waiting=4) as server, ThreadPoolExecutor(4) as clients:
        held.hold()
        path = "/v2/models/held/infer"
        running = clients.submit(infer, server, one(1), path)
        assert held.begun.wait(10)
        waiting = clients.submit(infer, server, one(2, rows=3), path)
        wait_for(lambda: b'samples_waiting{model_name="held"} 3.0' in ask(server, "/metrics").content)
        refused = infer(server, one(3, rows=2), path)
        assert "3 samples wait already" in refusal(refused, 429)
        assert refused.headers["retry-after"] == "1"
        assert "4 at most" in refusal(infer(server, one(3, rows=5), path), 413)
        held.gate.set()
        assert running.result().status == waiting.result().status == 200
        assert infer(server, one(3, rows=4), path).status == 200


def test_too_many_bytes_wait() -> None:
    held = Held()
    functions = {"held": (held, DOUBLED)}
    with serving_functions(functions, max_waiting_bytes=40) as server, ThreadPoolExecutor(4) as clients:
        path = "/v2/models/held/infer"
        assert infer(server, one(3, rows=4), path).status == 200  # 48 bytes, and nothing else waits
        held.hold()
        running = clients.submit(infer, server, one(1), path)
        assert held.begun.wait(10)
        waiting = clients.submit(infer, server, one(2, rows=2), path)
        wait_for(lambda: b'samples_waiting{model_name="held"} 2.0' in ask(server, "/metrics").content)
        assert "24 bytes of samples wait already, of 40" in refusal(infer(server, one(3, rows=2), path), 429)
        last = clients.submit(infer, server, one(4), path)
        wait_for(lambda: b'samples_waiting{model_name="held"} 3.0' in ask(server, "/metrics").content)
        held.gate.set()
        assert [one.result().status for one in (running, waiting, last)] == [200] * 3
        assert infer(server, one(3, rows=4), path).status == 200


def test_a_client_that_leaves_takes_its_samples_along() -> None:
    held = Held()
    with serving_functions({"held": (held, DOUBLED)}) as server, ThreadPoolExecutor(4) as clients:
        held.hold()
        path = "/v2/models/held/infer"
        running = clients.submit(infer, server, one(1), path)
        assert held.begun.wait(10)
        content = json.dumps(one(2, rows=5)).encode()
        with socket.create_connection((server.host, server.port)) as leaving:
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
            leaving.sendall(head.encode() + content)
            wait_for(lambda: b'samples_waiting{model_name="held"} 5.0' in ask(server, "/metrics").content)
        wait_for(lambda: b'samples_waiting{model_name="held"} 0.0' in ask(server, "/metrics").content)
        held.gate.set()
        assert running.result().status == 200
        assert held.sizes == [1]
        assert b'samples_cancelled_total{model_name="held"} 5.0' in ask(server, "/metrics").content


def test_the_end_waits_for_what_runs_and_takes_nothing_new() -> None:
    held = Held()
    with serving_functions({"held": (held, DOUBLED)}, shutdown_timeout_s=20) as server:
        held.hold()
        path = "/v2/models/held/infer"
        with ThreadPoolExecutor(2) as clients:
            running = clients.submit(infer, server, one(1), path)
            assert held.begun.wait(10)
            waiting = clients.submit(infer, server, one(2), path)
            wait_for(lambda: b'samples_waiting{model_name="held"} 1.0' in ask(server, "/metrics").content)
            server.begin_end()
            wait_for(lambda: ask(server, "/v2/health/ready").status == 503)
            refused = infer(server, one(3), path)
            assert "is shutting down" in refusal(refused, 503)
            assert "is shutting down" in refusal(ask(server, "/v2/models/held/ready"), 503)
            held.gate.set()
            assert running.result().json["outputs"][0]["data"] == [2.0] * 3
            assert waiting.result().json["outputs"][0]["data"] == [4.0] * 3


def test_the_end_cuts_what_takes_too_long() -> None:
    held = Held()
    with serving_functions({"held": (held, DOUBLED)}, shutdown_timeout_s=0.1) as server:
        held.hold()
        with ThreadPoolExecutor(1) as clients:
            running = clients.submit(infer, server, one(1), "/v2/models/held/infer")
            assert held.begun.wait(10)
            server.begin_end()
            assert "the server is shutting down" in refusal(running.result(), 503)
        held.gate.set()


def picky(x: Tensor) -> Tensor:
    if bool((x > 100).any()):
        raise ValueError("too large")
    return x * 2


def test_a_sample_that_the_model_fails_on_fails_alone() -> None:
    held = Held()

    def function(x: Tensor) -> Tensor:
        return picky(held(x)) / 2

    with serving_functions({"picky": (function, DOUBLED)}) as server, ThreadPoolExecutor(4) as clients:
        held.hold()
        path = "/v2/models/picky/infer"
        first = clients.submit(infer, server, one(0), path)
        assert held.begun.wait(10)
        good, bad = clients.submit(infer, server, one(3), path), clients.submit(infer, server, one(300), path)
        wait_for(lambda: b'samples_waiting{model_name="picky"} 2.0' in ask(server, "/metrics").content)
        held.gate.set()
        assert first.result().status == 200
        assert good.result().json["outputs"][0]["data"] == [6.0] * 3
        assert "the model failed on these inputs (ValueError)" in refusal(bad.result(), 500)


def test_the_limits_of_what_waits_reach_artefacts(tmp_path: Path) -> None:
    directory = save(small(), tmp_path / "model")
    given = Given(EngineOptions(), max_waiting=3, max_waiting_bytes=100)
    with opened({("small",): ArtefactSource(directory, "small")}, given, print) as models:
        artefact = models.artefact("small")
        assert artefact.max_waiting == 3
        assert artefact._batcher._max_waiting_bytes == 100
