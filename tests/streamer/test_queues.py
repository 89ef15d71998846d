"""The queue keeps order, drops only the oldest, and lets nobody wait for ever."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.errors import OptionError
from whet.streamer.queues import Closed, FrameQueue


@given(st.integers(1, 5), st.lists(st.one_of(st.integers(0, 100), st.none()), max_size=40))
def test_a_dropping_queue_holds_the_newest(capacity, actions):
    """None takes an item; a number puts one. A list is the model."""
    queue, model = FrameQueue(capacity, drops_oldest=True), []
    for action in actions:
        if action is None:
            assert queue.get(timeout_s=0) == (model.pop(0) if model else None)
            continue
        dropped = queue.put(action)
        model.append(action)
        expected = model.pop(0) if len(model) > capacity else None
        assert dropped == expected
    assert [queue.get(timeout_s=0) for _ in model] == model
    assert queue.get(timeout_s=0) is None


def test_a_waiting_queue_loses_nothing():
    queue, taken = FrameQueue(2, drops_oldest=False), []

    def take():
        try:
            while True:
                taken.append(queue.get())
        except Closed:
            pass

    thread = threading.Thread(target=take)
    thread.start()
    for item in range(500):
        assert queue.put(item) is None
    queue.close()
    thread.join()
    assert taken == list(range(500))


def test_closing_frees_those_who_wait():
    full, empty, freed = FrameQueue(1, drops_oldest=False), FrameQueue(1, drops_oldest=False), []
    full.put(1)

    def waits(call):
        try:
            call()
        except Closed:
            freed.append(True)

    threads = [threading.Thread(target=waits, args=(call,)) for call in (lambda: full.put(2), empty.get)]
    for thread in threads:
        thread.start()
    full.close()
    empty.close()
    for thread in threads:
        thread.join()
    assert freed == [True, True]
    assert full.get() == 1  # what waited may still be taken
    with pytest.raises(Closed):
        full.get()


def test_a_capacity_below_1_is_refused():
    with pytest.raises(OptionError, match="at least 1"):
        FrameQueue(0, drops_oldest=True)
