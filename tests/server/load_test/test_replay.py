"""Requests go out at their time whatever the server does: shown by servers that would stop a closed loop for good."""

import asyncio
import json
from collections.abc import Sequence
from functools import partial

import pytest
from completion_server import FakeServer, tokens

from whet.server.load_test.client import CompletionClient, clock
from whet.server.load_test.prompts import Prompts
from whet.server.load_test.record import Answer, Failure
from whet.server.load_test.replay import Replay, replay
from whet.server.load_test.trace import Arrival

PROMPTS = Prompts(1000)


def replayed(server: FakeServer, arrivals: list[Arrival], max_in_flight: int | None = None) -> Replay:
    async def run() -> Replay:
        async with CompletionClient(server.url) as client:
            return await replay(client, arrivals, PROMPTS, max_in_flight=max_in_flight)

    return asyncio.run(run())


def test_a_server_that_answers_nobody_until_all_are_there() -> None:
    arrivals = [Arrival(0.002 * i, 4, 3) for i in range(40)]
    with FakeServer(hold_until=40) as server:
        done = replayed(server, arrivals)
        assert server.most_in_flight == 40
    assert [record.failure for record in done.records] == [""] * 40
    assert not done.is_interrupted
    # The first waited for the last, and that counts.
    assert done.records[0].ttft_s is not None
    assert done.records[0].ttft_s >= 39 * 0.002


def test_requests_are_those_of_the_plan_and_none_is_early() -> None:
    arrivals = [Arrival(0.01 * i, 3 + i, 1 + i) for i in range(8)]
    first_s, token_s = 0.02, 0.004
    with FakeServer(script=partial(tokens, first_s=first_s, token_s=token_s)) as server:
        done = replayed(server, arrivals)
    # Each has a connection of its own: a server can read two in the other order than they were sent in.
    bodies = sorted(server.bodies, key=lambda body: len(body["prompt"]))
    assert [body["max_tokens"] for body in bodies] == [a.num_output for a in arrivals]
    assert [body["prompt"] for body in bodies] == [PROMPTS.token_ids(i, 3 + i) for i in range(8)]
    assert [record.arrival for record in done.records] == arrivals
    for record in done.records:
        assert record.start_s == record.arrival.at_s
        assert record.lateness_s >= 0
        assert record.num_output == len(record.token_s) == record.arrival.num_output
        assert record.ttft_s is not None and record.e2e_s is not None
        assert record.ttft_s >= first_s
        assert record.e2e_s >= first_s + token_s * (record.num_output - 1)
        if record.num_output > 1:
            assert record.tpot_s is not None
            assert record.tpot_s * (record.num_output - 1) == pytest.approx(sum(record.inter_token_s))


def test_a_cap_holds_and_latencies_count_from_the_sending() -> None:
    arrivals = [Arrival(0.0, 4, 2)] * 9
    with FakeServer(script=partial(tokens, first_s=0.01)) as server:
        done = replayed(server, arrivals, max_in_flight=3)
        assert server.most_in_flight == 3
    assert {record.failure for record in done.records} == {""}
    assert all(record.start_s == record.sent_s for record in done.records)
    assert max(record.lateness_s for record in done.records) >= 2 * 0.01  # two groups of three before it
    assert [len(body["prompt"]) for body in server.bodies] == [4] * 9


def test_what_fails_is_in_the_records_and_the_rest_goes_on() -> None:
    with FakeServer(status=lambda number: 429 if number % 3 == 0 else 200) as server:
        done = replayed(server, [Arrival(0.001 * i, 4, 2) for i in range(30)])
    kinds = [record.failure for record in done.records]
    assert kinds.count(Failure.REFUSED) == 10
    assert kinds.count("") == 20


class Deaf:
    """Answers nobody, or only every other one."""

    def __init__(self, every: int = 0) -> None:
        self.num_asked, self._every = 0, every

    async def complete(self, token_ids: Sequence[int], num_output: int) -> Answer:
        self.num_asked += 1
        sent_s = clock()
        if not self._every or self.num_asked % self._every:
            await asyncio.sleep(3600)
        return Answer(sent_s, [clock()], 1, has_usage=True)


def test_a_time_limit_ends_what_is_under_way() -> None:
    done = asyncio.run(replay(Deaf(every=2), [Arrival(0.0, 4, 1)] * 6, PROMPTS, time_limit_s=0.05))
    assert [record.failure for record in done.records].count(Failure.UNFINISHED) == 3
    assert not done.is_interrupted


def test_cancelled_it_returns_what_there_is() -> None:
    server = Deaf(every=2)

    async def run() -> Replay:
        arrivals = [*[Arrival(0.0, 4, 1)] * 6, Arrival(3600.0, 4, 1)]
        task = asyncio.create_task(replay(server, arrivals, PROMPTS))
        while server.num_asked < 6:
            await asyncio.sleep(0.001)
        task.cancel()
        return await task

    done = asyncio.run(run())
    assert done.is_interrupted
    assert len(done.records) == 6
    assert [record.failure for record in done.records].count("") == 3


def test_a_bug_of_the_client_is_not_swallowed() -> None:
    class Broken:
        async def complete(self, token_ids: Sequence[int], num_output: int) -> Answer:
            raise json.JSONDecodeError("bug", "", 0)

    with pytest.raises(json.JSONDecodeError):
        asyncio.run(replay(Broken(), [Arrival(0.0, 4, 1)], PROMPTS))


def test_progress_is_told() -> None:
    told: list[tuple[int, int]] = []

    async def run(server: FakeServer) -> None:
        async with CompletionClient(server.url) as client:
            await replay(client, [Arrival(0.0, 4, 1)] * 5, PROMPTS, on_progress=lambda *n: told.append(n))

    with FakeServer() as server:
        asyncio.run(run(server))
    assert told == [(i + 1, 5) for i in range(5)]
