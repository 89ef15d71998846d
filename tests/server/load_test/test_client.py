"""One request at a time against a server whose answer is known; every kind of failure by its name."""

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from completion_server import VOCAB_SIZE, FakeServer, Step, tokens

from whet.errors import OptionError, TargetError
from whet.server.load_test.client import CompletionClient, is_up, message_of, root_of
from whet.server.load_test.record import Answer, Failure
from whet.server.load_test.server_probe import PrefixCounters, examine, hit_rate, prefix_counters, read_counters


def answer_of(server: FakeServer, num_output: int = 6, *, silence_s: float = 10.0) -> Answer:
    async def ask() -> Answer:
        async with CompletionClient(server.url, silence_s=silence_s) as client:
            return await client.complete([1, 2, 3], num_output)

    return asyncio.run(ask())


def test_what_is_asked_for_and_when_each_chunk_came() -> None:
    with FakeServer(script=partial(tokens, first_s=0.03, token_s=0.01)) as server:
        answer = answer_of(server)
    assert (answer.failure, answer.num_output, answer.has_usage) == ("", 6, True)
    assert len(answer.token_s) == 6
    assert answer.token_s == sorted(answer.token_s)
    assert answer.token_s[0] - answer.sent_s >= 0.03
    assert answer.token_s[-1] - answer.sent_s >= 0.03 + 5 * 0.01
    (body,) = server.bodies
    assert body["prompt"] == [1, 2, 3]
    assert (body["max_tokens"], body["temperature"]) == (6, 0)
    assert body["stream"] is body["ignore_eos"] is body["stream_options"]["include_usage"] is True


def test_chunks_of_several_tokens_are_counted_by_usage() -> None:
    with FakeServer(script=partial(tokens, bundle=4)) as server:
        answer = answer_of(server, 10)
    assert (len(answer.token_s), answer.num_output) == (3, 10)


def chunk(text: str = "x", finish_reason: str | None = None) -> str:
    return json.dumps({"choices": [{"text": text, "finish_reason": finish_reason}]})


@pytest.mark.parametrize(
    ("steps", "failure", "num_chunks"),
    [
        ([chunk(), chunk("", "length"), "[DONE]"], "", 1),  # an end without text is no token
        ([chunk(""), chunk(), chunk("x", "length"), "[DONE]"], "", 3),  # half a character is one
        ([chunk("", "length"), "[DONE]"], "", 1),
        ([chunk("x", "stop")], "", 1),
        ([chunk(), "[DONE]"], Failure.CUT_SHORT, 1),
        ([], Failure.CUT_SHORT, 0),
        ([chunk(), None], Failure.BROKEN, 1),
        ([chunk(), '{"error": {"message": "out of memory"}}', "[DONE]"], Failure.IN_STREAM, 1),
        ([chunk(), chunk("", "abort"), "[DONE]"], Failure.IN_STREAM, 1),
        ([chunk(), "not json", chunk("x", "length")], Failure.IN_STREAM, 1),
        ([chunk(), "[1, 2]"], Failure.IN_STREAM, 1),
        ([chunk(), 5.0], Failure.TIMEOUT, 1),
    ],
)
def test_how_streams_end(steps: list[Step], failure: str, num_chunks: int) -> None:
    def script(body: dict[str, Any]) -> Iterator[Step]:
        yield from steps

    with FakeServer(script=script) as server:
        answer = answer_of(server, silence_s=0.3 if failure == Failure.TIMEOUT else 10.0)
    assert answer.failure == failure, answer.detail
    assert len(answer.token_s) == num_chunks
    assert not answer.has_usage


@pytest.mark.parametrize(("status", "failure"), [(429, Failure.REFUSED), (500, "HTTP 500"), (404, "HTTP 404")])
def test_statuses(status: int, failure: str) -> None:
    with FakeServer(status=lambda number: status) as server:
        answer = answer_of(server)
    assert (answer.failure, answer.detail) == (failure, f"status {status}")


def test_an_answer_that_is_no_stream_and_a_server_that_is_not_there() -> None:
    with FakeServer(content_type="application/json") as server:
        assert answer_of(server).failure == Failure.NO_STREAM
    assert answer_of(server).failure == Failure.CONNECT


def test_connections_are_used_again_and_never_waited_for() -> None:
    async def one_by_one(url: str) -> list[Answer]:
        async with CompletionClient(url) as client:
            return [await client.complete([1], 3) for _ in range(4)]

    async def at_once(url: str) -> list[Answer]:
        async with CompletionClient(url) as client:
            return await asyncio.gather(*(client.complete([1], 3) for _ in range(150)))

    with FakeServer() as server:
        assert [answer.failure for answer in asyncio.run(one_by_one(server.url))] == [""] * 4
        assert server.connections == 1
    with FakeServer(hold_until=150) as server:
        assert [answer.failure for answer in asyncio.run(at_once(server.url))] == [""] * 150


def test_what_a_server_serves() -> None:
    async def look(url: str, api_key: str | None) -> tuple[str, int, int | None]:
        async with CompletionClient(url, api_key=api_key) as client:
            facts = await examine(client)
            assert client.model == facts.model
            return facts.model, facts.vocab_size, facts.max_model_len

    with FakeServer(api_key="secret", max_model_len=300) as server:
        model, vocab_size, max_model_len = asyncio.run(look(f"{server.url}/v1/", "secret"))
        assert (model, max_model_len) == ("fake", 300)
        assert 0 < vocab_size <= VOCAB_SIZE
        for key in ("wrong", None):
            with pytest.raises(OptionError, match=r"refuses the key \(401\)"):
                asyncio.run(look(server.url, key))
        assert is_up(server.url) is False  # the key again
    with FakeServer() as server:
        assert is_up(server.url)
        with pytest.raises(TargetError, match="404"):
            asyncio.run(look(f"{server.url}/elsewhere", None))
    assert not is_up(server.url)
    with pytest.raises(TargetError, match=f"cannot reach {server.url}"):
        asyncio.run(look(server.url, None))


@pytest.mark.parametrize("url", ["http://", "ftp://a", "http://a:port", "http://a:99999", "https://a?x=1", "a:80"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(OptionError, match="not a server's address"):
        root_of(url)


def test_the_root_of_an_address() -> None:
    for url in ("http://a:80", "http://a:80/", "http://a:80/v1", "http://a:80/v1/"):
        assert root_of(url) == "http://a:80"
    assert root_of("https://a/proxy/v1") == "https://a/proxy"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"error": {"message": "too long\\nby far", "code": 400}}', "too long"),
        (b'{"error": "too long"}', "too long"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b"<html>\n<body>", "<html>"),
        (b"[1]", "[1]"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"", ""),
    ],
)
def test_what_a_server_says_went_wrong(content: bytes, message: str) -> None:
    assert message_of(content) == message


def test_prefix_counters_are_summed_over_labels() -> None:
    async def count(server: FakeServer) -> PrefixCounters | None:
        async with CompletionClient(server.url) as client:
            await client.complete([1, 2, 3], 2)
            await client.complete([1, 2, 4, 5], 2)
            return await prefix_counters(client)

    for prefix in ("whet:", "vllm:"):
        with FakeServer(metrics_prefix=prefix) as server:
            assert asyncio.run(count(server)) == PrefixCounters(queries=7, hits=2)
    for prefix in ("other:", None):
        with FakeServer(metrics_prefix=prefix) as server:
            assert asyncio.run(count(server)) is None
    name = "whet:prefix_cache"
    text = f'{name}_queries_total{{engine="0"}} 5\n{name}_queries_total{{engine="1"}} 6\n{name}_hits_total 1\n'
    assert read_counters(text) == PrefixCounters(queries=11, hits=1)
    assert read_counters("<html>") is None
    assert read_counters('a{b="c 1\n') is None


def test_the_hit_rate_is_of_the_tokens_in_between() -> None:
    before, after = PrefixCounters(100, 20), PrefixCounters(300, 70)
    assert hit_rate(before, after) == 0.25
    for pair in ((None, after), (before, None), (after, before), (after, after)):
        assert hit_rate(*pair) is None
