"""A worker takes work as it falls due, outlives failures, and ends after a last look into its inbox."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from whet.server.batching.worker import Worker


@dataclass
class Letters:
    """Letters that are due at their time."""

    waiting: list[tuple[float, str]] = field(default_factory=list)

    def due_s(self) -> float | None:
        return min((due_s for due_s, _ in self.waiting), default=None)

    def take(self, now_s: float, *, everything: bool = False) -> list[str]:
        due = [letter for due_s, letter in self.waiting if everything or due_s <= now_s]
        self.waiting = [entry for entry in self.waiting if entry[1] not in due]
        return due


class Post:
    """A worker that keeps what it took; "bad" letters make it fail."""

    def __init__(self) -> None:
        self.inbox = Letters()
        self.taken: list[tuple[float, str]] = []
        self.failures: list[str] = []
        self.came = threading.Condition()
        self.worker = Worker("post", self.inbox, self._work, failed=self._failed, clock=time.monotonic)
        self.worker.start()

    def send(self, letter: str, after_s: float = 0.0) -> float:
        due_s = time.monotonic() + after_s
        with self.worker.changed:
            self.inbox.waiting.append((due_s, letter))
            self.worker.changed.notify()
        return due_s

    def wait_for(self, count: int) -> list[str]:
        with self.came:
            assert self.came.wait_for(lambda: len(self.taken) + len(self.failures) >= count, 10)
        return [letter for _, letter in self.taken]

    def _work(self, letters: list[str]) -> None:
        if "close" in letters:
            self.worker.stop()  # returns at once on its own thread
        if "bad" in letters:
            raise ValueError("a bad letter")
        with self.came:
            self.taken += [(time.monotonic(), letter) for letter in letters]
            self.came.notify_all()

    def _failed(self, error: Exception) -> None:
        with self.came:
            self.failures.append(str(error))
            self.came.notify_all()


@pytest.fixture
def post() -> Iterator[Post]:
    post = Post()
    yield post
    post.worker.stop()


def test_work_is_taken_when_it_is_due_and_not_before(post: Post) -> None:
    due_s = post.send("later", after_s=0.1)
    post.send("now")
    assert post.wait_for(2) == ["now", "later"]
    assert post.taken[1][0] >= due_s


def test_it_goes_on_after_a_failure(post: Post) -> None:
    post.send("bad")
    post.wait_for(1)
    post.send("good")
    assert post.wait_for(2) == ["good"]
    assert post.failures == ["a bad letter"]


def test_stopping_takes_what_is_not_due_and_ends_the_thread(post: Post) -> None:
    post.send("much later", after_s=1000.0)
    post.worker.stop()
    assert [letter for _, letter in post.taken] == ["much later"]
    assert "post" not in [thread.name for thread in threading.enumerate()]
    post.worker.stop()  # a second time changes nothing


def test_it_may_be_stopped_by_its_own_work(post: Post) -> None:
    with post.worker.changed:  # so that both are there before the thread looks
        post.send("close")
        post.send("later", after_s=1000.0)
    assert post.wait_for(2) == ["close", "later"]
    post.worker.stop()
    assert "post" not in [thread.name for thread in threading.enumerate()]
