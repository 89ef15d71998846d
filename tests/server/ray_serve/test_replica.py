"""One replica without Ray: a plain ASGI application behind two methods."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_programs import save, small
from starlette.types import Message, Receive, Scope, Send

import whet
from whet.server.http.errors import HEADER_LENGTH
from whet.server.http.settings import Settings
from whet.server.opening import Given
from whet.server.options import EngineOptions
from whet.server.ray_serve.exchange import exchange
from whet.server.ray_serve.nodes import Node, Survey, check_room, check_same, cores_each, digest, survey
from whet.server.ray_serve.replica import Asked, Replica

SAID = {"prompt": "The three rules are", "max_tokens": 8, "temperature": 0}


@pytest.fixture(scope="module")
def replica() -> Iterator[Replica]:
    options = EngineOptions(dtype="fp32", max_num_seqs=4)
    settings = Settings(served_names=("m",), is_local=False)
    asked = Asked(model="docs-gpt", models={}, given=Given(options), settings=settings, threads=1, generation="g")
    found = Replica(asked, name="r1")
    yield found
    found.__del__()


def head(path: str = "/v1/completions", method: str = "POST") -> dict[str, Any]:
    content = [(b"content-type", b"application/json"), (b"host", b"elsewhere")]
    return {"method": method, "path": path, "raw_path": path.encode(), "query_string": b"", "headers": content}


async def answered(replica: Replica, body: dict[str, Any], path: str = "/v1/completions") -> tuple[int, bytes]:
    found = [one async for batch in replica.answer(head(path), json.dumps(body).encode()) for one in batch]
    return found[0]["status"], b"".join(one.get("body", b"") for one in found[1:])


def test_a_replica_answers_as_the_engine_does(replica: Replica) -> None:
    status, content = asyncio.run(answered(replica, SAID))
    with whet.Engine("src/whet/workloads/weights/docs-gpt", whet.EngineOptions(dtype="fp32")) as engine:
        expected = engine.generate(SAID["prompt"], whet.SamplingParams(max_tokens=8, temperature=0))
    assert (status, json.loads(content)["choices"][0]["text"]) == (200, expected.text)


def test_a_stream_comes_in_pieces(replica: Replica) -> None:
    async def batches() -> list[list[Message]]:
        body = json.dumps({**SAID, "stream": True, "max_tokens": 32}).encode()
        return [batch async for batch in replica.answer(head(), body)]

    found = asyncio.run(batches())
    assert len(found) > 2
    assert b"".join(one.get("body", b"") for batch in found for one in batch).endswith(b"data: [DONE]\n\n")


def test_a_request_that_is_closed_early_is_aborted(replica: Replica) -> None:
    async def begin() -> None:
        body = json.dumps({**SAID, "stream": True, "max_tokens": 400, "ignore_eos": True}).encode()
        answer = replica.answer(head(), body)
        await anext(answer)
        await answer.aclose()
        for _ in range(500):
            if stats(replica)["abort"] > before:
                break
            await asyncio.sleep(0.02)

    before = stats(replica)["abort"]
    asyncio.run(begin())
    assert stats(replica)["abort"] == before + 1


def test_tuned_models_answer_by_the_open_inference_protocol(tmp_path: Path) -> None:
    directory = save(small(), tmp_path / "small")
    settings = Settings(served_names=("small",), is_local=False)
    asked = Asked(
        model=str(directory), models={}, given=Given(EngineOptions()), settings=settings, threads=1, generation="g"
    )
    replica = Replica(asked, name="r1")
    try:
        x = torch.randn(3, 4)
        expected = whet.load(directory)(x).logits
        path = "/v2/models/small/infer"
        tensor = {"name": "input_0", "datatype": "FP32", "shape": [3, 4]}
        status, content = asyncio.run(answered(replica, {"inputs": [{**tensor, "data": x.tolist()}]}, path))
        assert status == 200
        outputs = {output["name"]: output for output in json.loads(content)["outputs"]}
        torch.testing.assert_close(torch.tensor(outputs["logits"]["data"]).reshape(3, 3), expected)

        said = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": 48}}]}).encode()
        asked_binary = head(path)
        asked_binary["headers"] = [
            (b"content-type", b"application/octet-stream"),
            (HEADER_LENGTH.lower().encode(), str(len(said)).encode()),
        ]
        assert asyncio.run(binary(replica, asked_binary, said + x.numpy().tobytes())) == outputs["logits"]["data"]
        asyncio.run(replica.check_health())
    finally:
        replica.__del__()


async def binary(replica: Replica, asked: dict[str, Any], content: bytes) -> list[float]:
    found = [one async for batch in replica.answer(asked, content) for one in batch]
    assert found[0]["status"] == 200
    answer = json.loads(b"".join(one.get("body", b"") for one in found[1:]))
    return next(output["data"] for output in answer["outputs"] if output["name"] == "logits")


def stats(replica: Replica) -> dict[str, int]:
    [engine] = replica._models.engines.values()
    return {"abort": 0, **engine.stats().request_success}


def test_metrics_and_health(replica: Replica) -> None:
    name, text = asyncio.run(replica.metrics())
    assert (name, asyncio.run(replica.generation())) == ("r1", "g")
    assert "whet:generation_tokens_total" in text
    asyncio.run(replica.check_health())


def test_an_engine_that_does_not_answer_is_unhealthy(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(timeout_s: float) -> None:
        raise TimeoutError

    [engine] = replica._models.engines.values()
    monkeypatch.setattr(engine, "ping", late)
    asyncio.run(replica.check_health())  # a step may take long
    monkeypatch.setattr("whet.server.ray_serve.replica.STEP_S", 0.0)
    with pytest.raises(RuntimeError, match="does not answer"):
        asyncio.run(replica.check_health())


def test_an_application_that_fails_raises_what_it_raised() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ValueError("broken")

    async def call() -> list[Message]:
        found: list[Message] = []
        with pytest.raises(ValueError, match="broken"):
            async for batch in exchange(app, head(), b""):
                found += batch
        return found

    assert [one["type"] for one in asyncio.run(call())] == ["http.response.start"]


def test_an_application_reads_the_body_and_then_hears_that_the_client_has_left() -> None:
    heard = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        heard.append(await receive())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            heard.append(await receive())
        finally:
            heard.append({"type": "over"})

    async def call() -> None:
        answer = exchange(app, head(), b"body")
        await anext(answer)
        await answer.aclose()

    asyncio.run(call())
    assert heard[0] == {"type": "http.request", "body": b"body", "more_body": False}
    assert heard[-1] == {"type": "over"}


def node(cpus: int, free: int = 2**40, files: dict[str, str] | None = None, version: str = whet.__version__) -> Node:
    return Node(f"10.0.0.{cpus}", cpus, Survey(version, "3.11.0", free, files or {}))


def test_the_room_for_replicas() -> None:
    check_room([node(4), node(3)], 3, cpus=2, bytes_each=2**30)
    with pytest.raises(whet.errors.OptionError, match=r"--replicas 4: with 2 of its 4 \+ 3 cores each, .* holds 3"):
        check_room([node(4), node(3)], 4, cpus=2, bytes_each=2**30)
    with pytest.raises(whet.errors.OptionError, match=r"--replicas 3: each takes about 1.07 GB of memory, .* holds 2"):
        check_room([node(4, 2**31), node(3, 2**29)], 3, cpus=1, bytes_each=2**30)
    check_room([node(4, 2**31), node(3, 2**29)], 3, cpus=1, bytes_each=None)


def test_an_equal_share_of_the_cores_lies_on_one_machine() -> None:
    assert cores_each([node(4), node(4)], 2) == 4
    assert cores_each([node(4), node(4)], 3) == 2
    assert cores_each([node(8), node(1)], 2) == 4
    assert cores_each([node(2)], 4) == 1


def test_what_differs_between_machines_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    here = survey([str(tmp_path)])
    same = {str(tmp_path): digest(tmp_path)}
    check_same([node(1, files=same)], here)
    (tmp_path / "config.json").write_text("[]")
    for files, version, message in (
        ({str(tmp_path): ""}, whet.__version__, "has no directory"),
        ({str(tmp_path): digest(tmp_path)}, whet.__version__, "has other files"),
        (same, "0.0.9", "has whet 0.0.9"),
    ):
        with pytest.raises(whet.errors.OptionError, match=f"10.0.0.1 {message}"):
            check_same([node(1, files=files, version=version)], here)
