"""Replicas that live and do not answer: what ends them, and that they are started again."""

import asyncio
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from replicated_process import Served, wait_for

from whet.errors import EngineClosed
from whet.measure.cores import allowed_cores
from whet.server.asked import Asked
from whet.server.options import EngineOptions
from whet.server.replicas import replica as replica_module
from whet.server.replicas import worker
from whet.server.replicas.replica import Replica
from whet.server.replicas.serving import FrontServer, serve_replicas


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    running = threading.Thread(target=loop.run_forever)
    running.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    running.join()
    loop.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "BEAT_S", 0.01)
    monkeypatch.setattr(worker, "SILENT_S", 0.2)
    monkeypatch.setattr(worker, "STEP_S", 0.4)

    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(worker.os, "_exit", leave)


def models(ping: Callable[[float], None]) -> Any:
    return SimpleNamespace(engines={("m",): SimpleNamespace(ping=ping)})


def test_a_replica_writes_while_all_of_it_answers(loop: asyncio.AbstractEventLoop) -> None:
    said, pings = io.StringIO(), list[float]()

    def ping(timeout_s: float) -> None:
        pings.append(timeout_s)
        if len(pings) == 2:  # a long step
            raise TimeoutError
        if len(pings) == 4:
            raise EngineClosed("the engine is closed")

    worker._beat(said, models(ping), loop)
    assert (said.getvalue(), pings) == ("\n\n\n", [0.01] * 4)


def test_an_engine_that_hangs_ends_its_replica(
    loop: asyncio.AbstractEventLoop, capsys: pytest.CaptureFixture[str]
) -> None:
    said = io.StringIO()

    def ping(timeout_s: float) -> None:
        raise TimeoutError

    with pytest.raises(SystemExit, match="4"):
        worker._beat(said, models(ping), loop)
    assert set(said.getvalue()) == {"\n"}
    assert capsys.readouterr().err == "the engine of m has not answered for 0.4 s\n"


def test_an_event_loop_that_hangs_ends_its_replica(loop: asyncio.AbstractEventLoop) -> None:
    is_over = threading.Event()
    loop.call_soon_threadsafe(is_over.wait)
    try:
        with pytest.raises(SystemExit, match="4"):
            worker._beat(io.StringIO(), models(lambda timeout_s: None), loop)
    finally:
        is_over.set()


_BEATS = """
import sys, time
for _ in range(20):
    print(flush=True)
    time.sleep(0.05)
print('{"error": "RanksError", "message": "rank 1 has ended"}', flush=True)
time.sleep(600)
"""


def test_a_process_that_falls_silent_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(replica_module, "BEAT_S", 0.5)
    monkeypatch.setattr(replica_module, "SILENT_S", 1.0)
    said: list[str] = []

    async def whole() -> tuple[int, int]:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", _BEATS, stdout=pipe)
        async with asyncio.timeout(60):
            await Replica(3, tmp_path, [0], {}, said.append)._listen(process)
            return process.pid, await process.wait()

    pid, code = asyncio.run(whole())
    assert code == -signal.SIGKILL
    assert said == [
        "replica 3: rank 1 has ended",
        f"replica 3 (process {pid}) hangs: it has not answered for 2 s",
    ]


@pytest.mark.slow
@pytest.mark.skipif(len(allowed_cores()) < 2, reason="two replicas need two cores")
def test_requests_of_a_replica_that_is_stopped_are_answered_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_module, "SILENT_S", 10.0)  # the replicas themselves write every 5 s
    answers: list[Any] = []
    notes: list[str] = []

    def ask(front: FrontServer) -> None:
        try:
            server = Served(SimpleNamespace(pid=os.getpid()), front.url, {})  # type: ignore[arg-type]
            bodies = [{"prompt": f"{number} things", "max_tokens": 8, "temperature": 0} for number in range(8)]
            before = [server.ask("/v1/completions", body)["choices"] for body in bodies]
            first = front.replicas[0].pid
            os.kill(first, signal.SIGSTOP)
            with ThreadPoolExecutor(8) as pool:
                after = list(pool.map(lambda body: server.ask("/v1/completions", body)["choices"], bodies))
            wait_for(lambda: server.ask("/health")["replicas_ready"] == 2)
            answers.append((before, after, first in [one.pid for one in front.replicas]))
        finally:
            front.begin_end()

    serve_replicas(
        Asked(model="docs-gpt", options=EngineOptions(dtype="fp32", memory=64 * 2**20)),
        2,
        host="127.0.0.1",
        port=0,
        note=notes.append,
        ready=lambda front: threading.Thread(target=ask, args=(front,)).start(),
    )
    [(before, after, is_there)] = answers
    assert before == after and not is_there
    assert sum("hangs: it has not answered for" in note for note in notes) == 1
    assert notes[-1] == "replica 0 takes requests again"
