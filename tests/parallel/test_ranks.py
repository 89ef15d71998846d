"""Processes know which of them live, and ask for it seldom."""

import json
from collections import Counter
from typing import Any

import pytest
from many import Group
from pulse_jobs import held_up, killed
from torch import distributed

from whet.parallel.ranks import BEAT_S, Pulse, Ranks


@pytest.mark.thorough
@pytest.mark.parametrize("who", [0, 1])
def test_a_process_that_holds_the_interpreters_lock_is_waited_for(who: int) -> None:
    with Group(held_up, 3, who, 6, 2.5, 60.0) as group:
        answers = group.answers()
    assert [fault for fault, _ in answers] == ["", "", ""]
    assert [one["found"] for _, one in answers] == [[0, 1, 2]] * 3
    [said] = [one["said"] for _, one in answers if one["said"]]
    assert said.startswith(f"rank {who} on ") and "in step 7" in said
    assert said.endswith(f"its process lives, and does not answer; waiting for up to {62 if who == 0 else 60} s\n")


@pytest.mark.thorough
def test_a_process_that_holds_the_lock_for_too_long_ends_the_run_and_is_said_to_live() -> None:
    with Group(held_up, 3, 1, 8, 2.5, 4.5) as group:
        answers = group.answers()
    assert [fault for fault, _ in answers] == ["", "", ""]
    found = [one["found"] for _, one in answers]
    assert found[0]["error"].startswith("waited 4.5 s for the answers, and not all of the 3 processes came: rank 1 on ")
    assert found[0]["error"].endswith("and its process lives")
    assert [one["is_told"] for one in found] == [False, True, True]


@pytest.mark.parametrize("who", [0, 1])
def test_a_process_that_ended_is_named_to_all_within_seconds_and_by_one(who: int) -> None:
    with Group(killed, 4, who, 2.5) as group:
        answers = group.answers()
    assert "ended without an answer" in answers[who][0]
    living = [one for rank, (_, one) in enumerate(answers) if rank != who]
    for one in living:
        assert f"rank {who} on " in one["found"]["error"] and "was killed" in one["found"]["error"]
        assert one["seconds"] < 30  # of 60 that they would have waited
    assert sum(not one["found"]["is_told"] for one in living) == 1


class Counted:
    """Count the requests to a store."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.requests: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        self.requests[name] += 1
        return getattr(self._store, name)


@pytest.mark.parametrize("size", [4, 128])
def test_a_look_at_all_takes_one_request(size: int) -> None:
    store = Counted(distributed.HashStore())
    ranks = [Ranks(rank, size, _store=store) for rank in range(size)]
    for one in ranks:
        one.beat()
    assert sorted(ranks[0].beats(range(size))) == list(range(size))
    store.requests.clear()
    ranks[0].beats(range(size))
    assert store.requests == {"multi_get": 1}
    for watched in (None, [0]):
        store.requests.clear()
        pulse = Pulse(ranks[0], watched)
        assert pulse.silent(BEAT_S) == []
        assert store.requests == {"multi_get": 1}


@pytest.mark.parametrize("size", [4, 128])
def test_a_wait_takes_as_many_requests_of_each_of_few_processes_as_of_many(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """The clock is one that sleeping moves: 60 s pass, in which the last process does not answer."""
    store, now = Counted(distributed.HashStore()), [0.0]
    ranks = [Ranks(rank, size, _store=store) for rank in range(size)]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if int(now[0]) > int(now[0] - seconds):
            before = store.requests.copy()
            for one in ranks:
                one.beat()
            store.requests = before
        if now[0] > 60:
            store._store.set("number/1", json.dumps(list(range(size))))
            store._store.set(f"number/1/{size - 1}", json.dumps(size - 1))

    monkeypatch.setattr("time.sleep", sleep)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("time.time", lambda: now[0])
    for rank in range(size - 1):
        store._store.set(f"number/1/{rank}", json.dumps(rank))
    for waiting in (ranks[0], ranks[1]):
        store._store.delete_key(f"number/1/{size - 1}")
        store._store.delete_key("number/1")
        now[0] = 0.0
        store.requests.clear()
        assert waiting.gather("number", waiting.rank) == list(range(size))
        assert sum(store.requests.values()) < 900, store.requests  # 60 looks, and 4 polls a second
        assert store.requests["multi_get"] <= 61
