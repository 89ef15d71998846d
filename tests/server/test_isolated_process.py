"""Work in a child process: whatever happens to the child is the request's own error."""

import os
import threading
from collections.abc import Iterator
from typing import IO, Any

import pytest

from whet.server import isolated_process
from whet.server.isolated_process import ChildEnded, IsolatedProcess


@pytest.fixture
def process() -> Iterator[IsolatedProcess]:
    process = IsolatedProcess("isolated_child")
    yield process
    process.end()


def test_one_child_answers_all_messages(process: IsolatedProcess) -> None:
    first = process.ask({"do": "answer"})["pid"]
    assert first != os.getpid()
    assert process.ask({"do": "answer"})["pid"] == first


@pytest.mark.parametrize(("what", "was_slow"), [("crash", False), ("spin", True)])
def test_a_child_that_ends_is_replaced(process: IsolatedProcess, what: str, was_slow: bool) -> None:
    first = process.ask({"do": "answer"})["pid"]
    with pytest.raises(ChildEnded) as ended:
        process.ask({"do": what})
    assert ended.value.was_slow is was_slow
    assert process.ask({"do": "answer"})["pid"] != first


def test_memory_has_a_limit(process: IsolatedProcess) -> None:
    assert process.ask({"do": "fill"}) == {"size": 0}


def test_an_end_frees_who_waits(process: IsolatedProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    process.ask({"do": "answer"})
    said, reads = [], threading.Event()
    received = isolated_process.received

    def told(stream: IO[bytes]) -> tuple[dict[str, Any], bytes] | None:
        reads.set()
        return received(stream)

    monkeypatch.setattr(isolated_process, "received", told)

    def wait() -> None:
        with pytest.raises(ChildEnded) as ended:
            process.ask({"do": "sleep"})
        said.append(ended.value.was_slow)

    waiting = threading.Thread(target=wait)
    waiting.start()
    reads.wait()
    process.end()
    waiting.join()
    assert said == [False]


def test_an_end_before_the_message_is_written_frees_too(
    process: IsolatedProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    process.ask({"do": "answer"})
    child = process._started()
    process.end()
    monkeypatch.setattr(process, "_started", lambda: child)
    with pytest.raises(ChildEnded):
        process.ask({"do": "answer"})


def test_a_child_ends_with_its_parent(process: IsolatedProcess) -> None:
    process.ask({"do": "answer"})
    child = process._process
    assert child is not None
    assert child.stdin is not None
    child.stdin.close()  # as the kernel does when the parent is gone
    assert child.wait() == 0
