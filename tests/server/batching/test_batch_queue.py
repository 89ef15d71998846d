"""When a batch is due and who is in it, on a clock that the test moves."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from whet.server.batching.batch_queue import BatchQueue, QueuedSample
from whet.server.batching.padding import Sample

NO_TENSOR = Sample({0: torch.empty(0)})


def waiting(arrived_s: float, length: int = 1, kind: str = "a") -> QueuedSample:
    return QueuedSample(NO_TENSOR, (kind,), length, arrived_s)


def queue_of(
    *entries: QueuedSample, max_batch: int = 3, max_wait_s: float = 1.0, sort_by_length: bool = True
) -> BatchQueue:
    queue = BatchQueue(max_batch, max_wait_s, sort_by_length=sort_by_length)
    for entry in entries:
        queue.add(entry)
    return queue


def test_the_time_counts_from_the_first_arrival() -> None:
    queue = queue_of()
    assert queue.due_s() is None
    assert queue.take(100.0) == []
    first, second = waiting(100.0), waiting(100.9)
    queue.add(first)
    assert queue.due_s() == 101.0
    queue.add(second)
    assert queue.due_s() == 101.0  # the second does not push it back
    assert queue.take(100.99) == []
    assert queue.take(101.0) == [[first, second]]
    assert queue.due_s() is None


def test_not_from_the_last_batch() -> None:
    queue = queue_of(*[waiting(float(i)) for i in range(3)])
    queue.take(2.0)
    late = waiting(50.0)
    queue.add(late)
    assert queue.due_s() == 51.0
    assert queue.take(50.5) == []


def test_a_full_batch_is_due_at_once_and_the_rest_keeps_its_own_time() -> None:
    entries = [waiting(10.0 + 0.1 * i) for i in range(4)]
    queue = queue_of(*entries)
    due_s = queue.due_s()
    assert due_s is not None and due_s <= 10.3
    assert queue.take(10.3) == [entries[:3]]
    assert len(queue) == 1
    assert queue.due_s() == pytest.approx(11.3)
    assert queue.take(11.2) == []
    assert queue.take(11.4) == [entries[3:]]


def test_looking_too_early_changes_nothing() -> None:
    entries = [waiting(10.0, length=1), waiting(10.5, length=9)]
    queue = queue_of(*entries)
    assert queue.take(10.6) == []
    assert queue.due_s() == 11.0
    assert queue.take(11.0) == [[entries[1], entries[0]]]


def test_longest_first_but_nobody_is_left_beyond_his_time() -> None:
    lengths = [2, 9, 4, 7, 7, 1, 8]
    entries = [waiting(float(i), length) for i, length in enumerate(lengths)]
    batches = queue_of(*entries, max_wait_s=100.0).take(7.0)
    assert [[e.length for e in batch] for batch in batches] == [[9, 8, 7], [7, 4, 2]]
    assert batches[0][2] is entries[3]  # of two with one length, the one that came first
    batches = queue_of(*entries, max_wait_s=6.5).take(7.0)  # the very first is due
    assert [[e.length for e in batch] for batch in batches] == [[9, 8, 7], [7, 4, 2]]
    batches = queue_of(*entries, max_wait_s=1.5).take(7.0)  # the shortest is
    assert [[e.length for e in batch] for batch in batches] == [[9, 8, 7], [7, 4, 2], [1]]
    batches = queue_of(*entries, sort_by_length=False, max_wait_s=100.0).take(7.0)
    assert [[e.length for e in batch] for batch in batches] == [[2, 9, 4], [7, 7, 1]]


def test_kinds_do_not_share_a_batch() -> None:
    entries = [waiting(float(i), kind=kind) for i, kind in enumerate("abab")]
    queue = queue_of(*entries, max_wait_s=3.0)
    assert queue.take(2.5) == []
    assert queue.take(3.5) == [[entries[0], entries[2]]]
    assert queue.due_s() == 4.0
    assert queue.take(3.5, everything=True) == [[entries[1], entries[3]]]


def test_one_that_is_taken_back() -> None:
    first, second = waiting(0.0), waiting(0.5)
    queue = queue_of(first, second)
    queue.discard(first)
    queue.discard(first)
    assert len(queue) == 1
    assert queue.due_s() == 1.5
    queue.discard(second)
    assert queue.due_s() is None
    queue.discard(waiting(0.0, kind="other"))


class AnyOrderOfEvents(RuleBasedStateMachine):
    """Nothing is lost or run twice, no batch is too large or mixed, nobody stays beyond his time."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.queue = BatchQueue(4, 1.0)
        self.inside: list[QueuedSample] = []

    @rule(length=st.integers(0, 5), kind=st.sampled_from("ab"))
    def arrive(self, length: int, kind: str) -> None:
        self.inside.append(waiting(self.now_s, length, kind))
        self.queue.add(self.inside[-1])

    @rule(seconds=st.floats(0, 2))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(place=st.integers(0, 10))
    def leave(self, place: int) -> None:
        if place < len(self.inside):
            self.queue.discard(self.inside.pop(place))

    @rule(everything=st.booleans())
    def take(self, everything: bool) -> None:
        due_s = self.queue.due_s()
        batches = self.queue.take(self.now_s, everything=everything)
        assert bool(batches) == (due_s is not None and (everything or due_s <= self.now_s))
        for batch in batches:
            assert 0 < len(batch) <= 4
            assert len({entry.kind for entry in batch}) == 1
            assert [entry.length for entry in batch] == sorted((entry.length for entry in batch), reverse=True)
            for entry in batch:
                self.inside.remove(entry)
        assert all(self.now_s - entry.arrived_s < 1.0 for entry in self.inside)
        assert not (everything and self.inside)
        for kind in "ab":
            assert sum(entry.kind == (kind,) for entry in self.inside) < 4

    @invariant()
    def counts_agree(self) -> None:
        assert len(self.queue) == len(self.inside)
        is_full = any(sum(entry.kind == (kind,) for entry in self.inside) >= 4 for kind in "ab")
        oldest_s = min((entry.arrived_s for entry in self.inside), default=None)
        assert self.queue.due_s() == (oldest_s if is_full or oldest_s is None else oldest_s + 1.0)


TestAnyOrderOfEvents = AnyOrderOfEvents.TestCase


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(1, 8))
def test_sorting_never_pads_more(lengths: list[int], max_batch: int) -> None:
    def padded(*, sort_by_length: bool) -> int:
        entries = [waiting(0.0, length) for length in lengths]
        queue = queue_of(*entries, max_batch=max_batch, sort_by_length=sort_by_length)
        return sum(max(e.length for e in batch) * len(batch) for batch in queue.take(math.inf))

    assert padded(sort_by_length=True) <= padded(sort_by_length=False)


def test_bytes_are_counted_until_samples_run() -> None:
    entries = [QueuedSample(Sample({0: torch.empty(n)}), ("a",), 1, 0.0) for n in (1, 2, 3, 4)]
    queue = queue_of(*entries, max_batch=2)
    assert queue.num_bytes == 40
    queue.discard(entries[3])
    queue.discard(entries[3])
    assert queue.num_bytes == 24
    [batch] = queue.take(0.5)
    assert queue.num_bytes == 24
    queue.begin(batch)
    assert (queue.num_bytes, queue.num_waiting) == (12, 1)
    queue.clear()
    assert queue.num_bytes == 0
