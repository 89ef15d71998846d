"""The server as openai-python sees it: plain, streaming, async, and its exception classes."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from asking import serving
from fake_engine import TOKENIZER, WORD_IDS, WORDS, FakeEngine

from whet.server.http.run import HttpServer

openai = pytest.importorskip("openai")

ENGINE = FakeEngine()
KEY = "a-key"
TEXT = TOKENIZER.decode(WORD_IDS[:8])
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def server() -> Iterator[HttpServer]:
    with serving(ENGINE, api_keys=(KEY,)) as server:
        yield server


@pytest.fixture(autouse=True)
def engine() -> FakeEngine:
    ENGINE.reset()
    return ENGINE


@pytest.fixture
def client(server: HttpServer) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def test_completions(client: Any) -> None:
    answer = client.completions.create(model="fake", prompt="Once", max_tokens=8, logprobs=2, echo=True)
    assert answer.choices[0].text == "Once" + TEXT
    assert answer.choices[0].logprobs.token_logprobs[-1] == -0.1
    assert answer.usage.completion_tokens == 8
    stream = client.completions.create(model="fake", prompt="Once", max_tokens=8, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == TEXT


def test_chat(client: Any) -> None:
    answer = client.chat.completions.create(model="fake", messages=CHAT, max_completion_tokens=8, n=2, logprobs=True)
    assert [choice.message.content for choice in answer.choices] == [TEXT, TEXT]
    assert len(answer.choices[0].logprobs.content) == 8


def test_streamed_chat(client: Any) -> None:
    stream = client.chat.completions.create(
        model="fake", messages=CHAT, max_tokens=len(WORD_IDS), stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == WORDS
    assert (last.choices, last.usage.completion_tokens) == ([], len(WORD_IDS))


def test_leaving_a_stream_ends_the_work(client: Any, engine: FakeEngine) -> None:
    engine.max_model_len = 10**7
    with client.chat.completions.create(model="fake", messages=CHAT, stream=True) as stream:
        next(iter(stream))
    engine.wait_running(0)
    assert engine.aborted == ["request-0"]


def test_its_own_stream_helper_puts_the_message_together(client: Any) -> None:
    end = {"stop_token_ids": [WORD_IDS[7]]}
    with client.chat.completions.stream(model="fake", messages=CHAT, extra_body=end) as stream:
        assert stream.get_final_completion().choices[0].message.content == TEXT


def test_async(server: HttpServer) -> None:
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:

            async def one(number: int) -> str:
                if number % 2:
                    answer = await client.chat.completions.create(model="fake", messages=CHAT, max_tokens=8)
                    return str(answer.choices[0].message.content)
                stream = await client.completions.create(model="fake", prompt="Once", max_tokens=8, stream=True)
                return "".join([chunk.choices[0].text async for chunk in stream])

            return list(await asyncio.gather(*(one(number) for number in range(20))))

    assert asyncio.run(ask()) == [TEXT] * 20


def test_models(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["fake"]
    assert client.models.retrieve("fake").id == "fake"


def test_errors_are_its_exception_classes(client: Any, engine: FakeEngine) -> None:
    create = client.completions.create
    with pytest.raises(openai.BadRequestError, match="temperature") as bad:
        create(model="fake", prompt="Once", temperature=-1)
    assert (bad.value.param, bad.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.NotFoundError, match="there is no model"):
        create(model="other", prompt="Once")
    with pytest.raises(openai.AuthenticationError, match="wrong API key"):
        client.with_options(api_key="wrong").completions.create(model="fake", prompt="Once")
    engine.capacity = 0
    with pytest.raises(openai.RateLimitError, match="too many requests wait"):
        create(model="fake", prompt="Once")
    engine.capacity, engine.failing = 9, 0
    with pytest.raises(openai.InternalServerError, match="fails on purpose"):
        create(model="fake", prompt="Once")


def test_an_engine_that_fails_in_the_middle_of_a_stream(client: Any, engine: FakeEngine) -> None:
    engine.held, engine.failing = True, 3

    def begin() -> None:
        engine.wait_running(1)
        engine.step(2)

    beginning = threading.Thread(target=begin)
    beginning.start()
    stream = iter(client.completions.create(model="fake", prompt="Once", stream=True))
    assert next(stream).choices[0].text
    beginning.join()
    engine.let_go()
    with pytest.raises(openai.APIError, match="fails on purpose"):
        list(stream)
