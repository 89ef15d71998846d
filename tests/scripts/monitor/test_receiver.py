"""What watched processes say, over a real socket: true, in part, and nonsense."""

import json
import socket
import time
from collections.abc import Callable, Iterator

import pytest
from made_runs import make_run

from whet.scripts.monitor.receiver import Receiver
from whet.scripts.monitor.run import Run
from whet.scripts.monitor.steps import StepTotals


@pytest.fixture
def run() -> Run:
    return make_run()


@pytest.fixture
def receiver(run: Run) -> Iterator[Receiver]:
    receiver = Receiver(run)
    yield receiver
    receiver.finish(timeout_s=0.1)


def connect(receiver: Receiver) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(str(receiver.path))
    return connection


def message(pid: int, latency_s: float, rank: int = 0, **more: object) -> bytes:
    steps = StepTotals()
    steps.add(latency_s, {"forward": latency_s / 2}, 8, None)
    return json.dumps({"format": 1, "pid": pid, "rank": rank, "steps": steps.to_json(), **more}).encode() + b"\n"


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_steps_arrive_however_they_are_cut(receiver: Receiver) -> None:
    sent = message(1, 0.1) + message(1, 0.3)
    with connect(receiver) as connection:
        for i in range(0, len(sent), 7):
            connection.sendall(sent[i : i + 7])
        wait_for(lambda: receiver._sources.get(1) is not None and receiver._sources[1].steps.num_steps == 2)
    steps = receiver.take_steps()
    assert (steps.num_steps, steps.num_samples, steps.latencies.longest_s) == (2, 16, 0.3)
    assert receiver.take_steps().num_steps == 0
    assert "steps" not in receiver.unavailable


def test_processes_that_train_together(receiver: Receiver, run: Run) -> None:
    with connect(receiver) as second, connect(receiver) as first:
        second.sendall(message(11, 0.5, rank=1))
        first.sendall(message(10, 0.2, rank=0))
        wait_for(lambda: len(receiver._sources) == 2)
        steps = receiver.take_steps()
    assert (steps.num_steps, steps.num_samples, steps.latencies.longest_s) == (1, 16, 0.2)
    assert run.notes() == ["2 processes train: steps and phases are of the first, samples are of all"]


def test_one_process_after_another(receiver: Receiver) -> None:
    for pid in (20, 21):
        with connect(receiver) as connection:
            connection.sendall(message(pid, 0.1))
            wait_for(lambda pid=pid: pid in receiver._sources)  # type: ignore[misc]
        wait_for(lambda pid=pid: not receiver._sources[pid].is_open)  # type: ignore[misc]
        assert receiver.take_steps().num_steps == 1


def test_memory_of_the_allocator(receiver: Receiver) -> None:
    assert "CUDA memory, fragmentation" in receiver.unavailable
    with connect(receiver) as connection:
        connection.sendall(message(1, 0.1, cells={"cuda_reserved_bytes:0": 5.0}))
        wait_for(lambda: bool(receiver.collect()))
        assert receiver.collect()["cuda_reserved_bytes:0"].mean == 5
        assert "CUDA memory, fragmentation" not in receiver.unavailable
    wait_for(lambda: not receiver.collect())  # what an ended process held, it holds no more


@pytest.mark.parametrize(
    "line",
    [
        b"no json\n",
        b"\xff\xfe\n",
        b"[]\n",
        b'{"format": 2, "pid": 1}\n',
        b'{"format": 1, "pid": -1}\n',
        message(1, 0.1).replace(b'"counts": {"', b'"counts": {"99999'),
        message(1, 0.1).replace(b'"total_s": 0.1', b'"total_s": NaN'),
    ],
)
def test_nonsense_is_left_out_and_said(receiver: Receiver, run: Run, line: bytes) -> None:
    with connect(receiver) as connection:
        connection.sendall(line + message(2, 0.1))
        wait_for(lambda: 2 in receiver._sources)
    assert set(receiver._sources) == {2}
    assert "an invalid message" in run.notes()[0]


def test_a_line_without_end_is_cut_off(receiver: Receiver) -> None:
    with connect(receiver) as connection, pytest.raises(OSError, match=r"[Bb]roken pipe|reset"):
        for _ in range(1000):
            connection.sendall(b"x" * 65_536)
    wait_for(lambda: receiver._num_open == 0)


def test_a_problem_takes_the_place_of_the_steps(receiver: Receiver) -> None:
    with connect(receiver) as connection:
        connection.sendall(b'{"format": 1, "pid": 1, "problem": "steps cannot be seen: no whet"}\n')
        wait_for(lambda: "no whet" in receiver.unavailable["steps"])
    assert "steps cannot be seen" in receiver.unavailable["steps"]


def test_only_this_user_may_talk(receiver: Receiver) -> None:
    assert receiver.path.parent.stat().st_mode & 0o077 == 0
