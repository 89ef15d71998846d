"""What replicas are asked through Ray's handle, with a handle of the test's own."""

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("ray.serve")

from whet.server.ray_serve import calls
from whet.server.ray_serve.calls import RayReplicas


class Told:
    """A replica's answer, which comes, fails, or never comes."""

    def __init__(self, answer: tuple[str, str] | Exception | None) -> None:
        self.answer = answer

    async def get_async(self) -> tuple[str, str]:
        if self.answer is None:
            await asyncio.sleep(600)
        if isinstance(self.answer, Exception):
            raise self.answer
        assert self.answer is not None
        return self.answer


def replicas(*answers: tuple[str, str] | Exception | None) -> RayReplicas:
    async def fetched() -> list[Told]:
        return [Told(one) for one in answers]

    asked = SimpleNamespace(_fetch_replica_results_async=fetched)
    return RayReplicas(SimpleNamespace(broadcast=lambda method: asked))


def test_metrics_are_those_of_the_replicas_that_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_METRICS_S", 0.2)
    some = replicas(("r1", "steps 1"), None, RuntimeError("it died"), ("r2", "steps 2"))
    assert asyncio.run(some.metrics()) == {"r1": "steps 1", "r2": "steps 2"}
    assert asyncio.run(replicas().metrics()) == asyncio.run(replicas(None).metrics()) == {}
