"""Replicas that die, that do not start, and that are replaced: with fakes instead of processes."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from whet.errors import TargetError
from whet.server.replicas import supervisor as supervisor_module
from whet.server.replicas.fleet import Fleet
from whet.server.replicas.supervisor import Supervisor
from whet.server.replicas.upstream import Upstream


class Fake:
    """A replica that is a few events. `fails` says why it does not start."""

    memory = 100

    def __init__(self, number: int, pid: int, fails: str = "") -> None:
        self.number, self.pid, self.fails = number, pid, fails
        self.upstream: Upstream = None  # type: ignore[assignment]
        self.over = asyncio.Event()

    async def start(self) -> None:
        if self.fails:
            raise TargetError(self.fails)
        self.upstream = Upstream(self.number, "/nowhere")

    async def ended(self) -> str:
        await self.over.wait()
        self.upstream.ended.set()
        return "by signal 9"

    async def end(self, timeout_s: float) -> None:
        self.over.set()
        await self.close()

    async def close(self) -> None:
        if self.upstream is not None:
            self.upstream.ended.set()
            await self.upstream.close()


@dataclass
class House:
    """A supervisor of fakes. `fails` has, by number, why the next one does not start."""

    num_replicas: int = 2
    made: list[Fake] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    fails: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.fleet = Fleet(self.num_replicas)
        self.supervisor = Supervisor(self.fleet, self.make, self.said.append, drain_s=5.0)  # type: ignore[arg-type]

    def make(self, number: int) -> Fake:
        self.made.append(Fake(number, len(self.made), self.fails.get(number, "")))
        return self.made[-1]

    @property
    def here(self) -> list[int]:
        """The ids of the processes that take requests, by number."""
        running = {one.upstream.id: one.pid for one in self.made if one.upstream is not None}
        return [running[one.id] for one in self.fleet.taking]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0.005)


def run(test: Callable[[House], Coroutine[Any, Any, None]], num_replicas: int = 2) -> None:
    async def whole() -> None:
        house = House(num_replicas)
        try:
            await test(house)
        finally:
            await house.supervisor.stop()
        assert house.fleet.taking == []
        assert all(one.over.is_set() for one in house.made if one.upstream is not None)

    asyncio.run(whole())


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "_FIRST_S", 0.01)
    monkeypatch.setattr(supervisor_module, "free_memory", lambda: 1000)


def test_one_that_dies_is_started_again_until_it_runs() -> None:
    async def test(house: House) -> None:
        await house.supervisor.start()
        assert house.here == [0, 1]
        house.fails[1] = "no memory"
        house.made[1].over.set()
        await house.until(lambda: len(house.made) >= 4)
        assert house.here == [0]
        del house.fails[1]
        await house.until(lambda: len(house.here) == 2)
        assert house.fleet.counts.deaths == {0: 0, 1: 1}
        assert "replica 1 (process 1) ended by signal 9; it is started again in 0.01 s" in house.said
        assert "replica 1 did not start: no memory; it is tried again in 0.04 s" in house.said
        assert house.said[-1] == "replica 1 takes requests again"

    run(test)


def test_what_does_not_start_at_first_is_an_error_and_leaves_nothing() -> None:
    async def test(house: House) -> None:
        house.fails[1] = "the model is damaged"
        with pytest.raises(TargetError, match="the model is damaged"):
            await house.supervisor.start()
        assert house.made[0].over.is_set()

    run(test, 3)


def test_all_are_replaced_and_the_old_ones_answer_what_they_have() -> None:
    async def test(house: House) -> None:
        await house.supervisor.start()
        old = house.made[0].upstream
        with old.working():
            house.supervisor.begin_update()
            await house.until(lambda: house.here == [2, 1])
            await asyncio.sleep(0.05)
            assert not house.made[0].over.is_set()
            assert not old.is_taking
            house.supervisor.begin_update()
            assert house.said[-1] == "the replicas are being replaced already"
        await house.until(lambda: house.here == [2, 3])
        await house.until(lambda: house.fleet.counts.updates == 2)
        assert house.made[0].over.is_set() and house.made[1].over.is_set()
        assert house.fleet.counts.deaths == {0: 0, 1: 0}

    run(test)


def test_a_new_one_that_does_not_start_leaves_the_old_ones() -> None:
    async def test(house: House) -> None:
        await house.supervisor.start()
        house.fails[0] = "the files are damaged"
        await house.supervisor.update()
        assert house.here == [0, 1]
        assert (
            "not replaced, since the new one did not start (the files are damaged): the old one goes on"
            in house.said[-1]
        )
        del house.fails[0]
        await house.supervisor.update()
        assert house.here == [3, 4]

    run(test)


def test_without_memory_for_one_more_the_old_one_ends_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "free_memory", lambda: 50)

    async def test(house: House) -> None:
        await house.supervisor.start()
        with house.made[0].upstream.working():
            house.supervisor.begin_update()
            await house.until(lambda: house.here == [1])
            await asyncio.sleep(0.05)
            assert len(house.made) == 2
            assert not house.made[0].over.is_set()
        await house.until(lambda: house.here == [2, 3])
        assert house.said[0] == "memory does not hold one more replica: replica 0 ends first"

    run(test)
