"""Calls of tools over HTTP: chosen by the model, required, named; whole and in streams; with clients' own helpers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_engine
import jsonschema
import pytest
from asking import Answer, ask, serving
from chat_models import FAMILIES, Family
from fake_engine import TOKENIZER, FakeEngine
from guided import random_model
from pydantic import BaseModel

from whet.errors import OptionError
from whet.server.engine import Engine
from whet.server.http.protocol import Message
from whet.server.http.run import HttpServer
from whet.server.http.settings import Settings
from whet.server.options import EngineOptions

openai = pytest.importorskip("openai")

WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Zürich"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER, "description": "The weather"}},
    {"type": "function", "function": {"name": "now"}},
]
MESSAGES = [{"role": "user", "content": "Rain?"}]


def family_engine(family: Family, directory: Path) -> Engine:
    tokenizer = family.write(directory)
    model = random_model(vocab_size=tokenizer.vocab_size, max_model_len=1024)
    return Engine(model, EngineOptions(memory=2**20), tokenizer=tokenizer)


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda family: family.name + "-special" * bool(family.special))
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    with (
        family_engine(request.param, tmp_path_factory.mktemp("family")) as engine,
        serving(engine) as server,  # type: ignore[arg-type]
    ):
        yield server


def chat(server: HttpServer, **fields: Any) -> Answer:
    body = {"messages": MESSAGES, "max_tokens": 400, "seed": 1, "tools": TOOLS, **fields}
    return ask(server, "/v1/chat/completions", body)


def check_calls(calls: list[dict[str, Any]]) -> None:
    assert len({call["id"] for call in calls}) == len(calls) > 0
    for call in calls:
        arguments = json.loads(call["function"]["arguments"])
        assert call["type"] == "function"
        if call["function"]["name"] == "get_weather":
            jsonschema.validate(arguments, WEATHER)
        else:
            assert (call["function"]["name"], arguments) == ("now", {})


def test_an_answer_that_must_call_calls(server: HttpServer) -> None:
    for seed in range(5):
        choice = chat(server, tool_choice="required", seed=seed, parallel_tool_calls=False).json["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] is None
        assert len(choice["message"]["tool_calls"]) == 1
        check_calls(choice["message"]["tool_calls"])


def test_several_calls(server: HttpServer) -> None:
    found = [chat(server, tool_choice="required", seed=seed).json["choices"][0] for seed in range(8)]
    done = [choice["message"]["tool_calls"] for choice in found if choice["finish_reason"] == "tool_calls"]
    for calls in done:
        check_calls(calls)
    assert max(len(choice["message"]["tool_calls"]) for choice in found) > 1


def test_a_named_function_is_the_one_that_is_called(server: HttpServer) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    choice = chat(server, tool_choice=named).json["choices"][0]
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["get_weather"]
    check_calls(choice["message"]["tool_calls"])
    assert choice["finish_reason"] == "tool_calls"


def test_a_stream_says_the_same(server: HttpServer) -> None:
    fields = {"tool_choice": "required", "parallel_tool_calls": False, "seed": 4}
    whole = chat(server, **fields).json["choices"][0]["message"]["tool_calls"][0]
    deltas = [event["choices"][0] for event in chat(server, stream=True, **fields).events]
    pieces = [delta["delta"]["tool_calls"][0] for delta in deltas if delta["delta"].get("tool_calls")]
    first, *others = pieces
    assert (first["index"], first["type"], first["function"]) == (
        0,
        "function",
        {"name": whole["function"]["name"], "arguments": ""},
    )
    assert first["id"]
    assert all(set(piece) == {"index", "function"} for piece in others)
    assert "".join(piece["function"]["arguments"] for piece in others) == whole["function"]["arguments"]
    assert len(others) > 1
    assert deltas[-1]["finish_reason"] == "tool_calls"
    assert not any(delta["delta"].get("content") for delta in deltas)


def test_a_model_that_may_choose_is_free(server: HttpServer) -> None:
    """A random model calls nothing: all its text is content, the same whether or not it may call."""
    asked = chat(server, max_tokens=30).json["choices"][0]
    without = chat(server, max_tokens=30, tool_choice="none").json["choices"][0]
    assert asked["finish_reason"] == without["finish_reason"] == "length"
    shown = asked["message"]["content"]
    for mark in ("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "<|tool_call|>"):
        if mark not in without["message"]["content"]:
            shown = shown.replace(mark, "")
    assert shown == without["message"]["content"]


def test_strict_functions_may_be_left_uncalled(server: HttpServer) -> None:
    strict = [{"type": "function", "function": {"name": "now", "strict": True}}]
    found = [chat(server, tools=strict, seed=seed, max_tokens=60) for seed in range(3)]
    assert all(answer.status == 200 for answer in found)


def test_what_was_cut_short_is_still_a_call(server: HttpServer) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    whole = chat(server, tool_choice=named).json
    num_tokens = whole["usage"]["completion_tokens"] - 4
    choice = chat(server, tool_choice=named, max_tokens=num_tokens).json["choices"][0]
    assert choice["finish_reason"] == "length"
    cut = choice["message"]["tool_calls"][0]["function"]["arguments"]
    full = whole["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
    assert full.startswith(cut)


class GetWeather(BaseModel):
    """The weather of a city."""

    city: str
    days: int


def test_openai_parses_calls(server: HttpServer) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        tool = openai.pydantic_function_tool(GetWeather)
        tool["function"]["parameters"]["properties"]["city"]["maxLength"] = 10
        options = {"model": "fake", "messages": MESSAGES, "tools": [tool], "max_tokens": 400, "seed": 3}
        answer = client.chat.completions.parse(tool_choice="required", parallel_tool_calls=False, **options)
        assert isinstance(answer.choices[0].message.tool_calls[0].function.parsed_arguments, GetWeather)
        with client.chat.completions.stream(tool_choice="required", parallel_tool_calls=False, **options) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_completion().choices[0]
        assert final.finish_reason == "tool_calls"
        assert isinstance(final.message.tool_calls[0].function.parsed_arguments, GetWeather)
        assert "tool_calls.function.arguments.delta" in kinds


def test_langchain_binds_tools(server: HttpServer) -> None:
    langchain_openai = pytest.importorskip("langchain_openai")
    model = langchain_openai.ChatOpenAI(
        base_url=f"{server.url}/v1", api_key="none", model="fake", max_tokens=400, seed=5
    )
    bound = model.bind_tools(TOOLS, tool_choice="get_weather")
    message = bound.invoke("Rain?")
    assert [call["name"] for call in message.tool_calls] == ["get_weather"]
    jsonschema.validate(message.tool_calls[0]["args"], WEATHER)
    streamed = None
    for chunk in bound.stream("Rain?"):
        streamed = chunk if streamed is None else streamed + chunk
    assert streamed is not None
    jsonschema.validate(streamed.tool_calls[0]["args"], WEATHER)
    again = [
        ("user", "Rain?"),
        message,
        {"role": "tool", "tool_call_id": message.tool_calls[0]["id"], "content": "5 mm"},
    ]
    assert bound.invoke(again).tool_calls


CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich", "days": 2}}\n</tool_call>'
SAID = f"Let me <b>look</b>.\n{CALL}\n{CALL.replace('get_weather', 'unknown')}{CALL.replace('2', '3')}"


@pytest.fixture
def saying(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of a server whose model says SAID, and then ends."""
    engine = FakeEngine()
    ids = [*TOKENIZER.encode(SAID), *TOKENIZER.eos_ids]
    monkeypatch.setattr(fake_engine, "WORD_IDS", ids)
    with (
        serving(engine, tool_call_parser="hermes") as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


ASKED: dict[str, Any] = {
    "model": "fake",
    "messages": MESSAGES,
    "tools": TOOLS,
    "extra_body": {"stop_token_ids": sorted(TOKENIZER.eos_ids)},
}


def test_calls_that_a_model_chooses(saying: Any) -> None:
    choice = saying.chat.completions.create(**ASKED).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == f"Let me <b>look</b>.\n\n{CALL.replace('get_weather', 'unknown')}"
    found = [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls]
    assert found == [("get_weather", {"city": "Zürich", "days": days}) for days in (2, 3)]
    plain = saying.chat.completions.create(tool_choice="none", **ASKED).choices[0]
    assert (plain.finish_reason, plain.message.content, plain.message.tool_calls) == ("stop", SAID, None)
    single = saying.chat.completions.create(parallel_tool_calls=False, **ASKED).choices[0]
    assert len(single.message.tool_calls) == 1


def test_calls_that_a_model_chooses_in_a_stream(saying: Any) -> None:
    whole = saying.chat.completions.create(logprobs=True, **ASKED)
    content, calls, reasons, num_logprobs = "", dict[int, list[str]](), list[str](), 0
    for chunk in saying.chat.completions.create(stream=True, logprobs=True, **ASKED):
        choice = chunk.choices[0]
        content += choice.delta.content or ""
        num_logprobs += len(choice.logprobs.content) if choice.logprobs else 0
        for call in choice.delta.tool_calls or ():
            assert (call.index in calls) is (call.id is None), "the first piece has the id"
            calls.setdefault(call.index, [call.function.name, ""])[1] += call.function.arguments
        reasons.append(choice.finish_reason)
    message = whole.choices[0].message
    assert content == message.content
    assert [tuple(call) for call in calls.values()] == [
        (call.function.name, call.function.arguments) for call in message.tool_calls
    ]
    assert reasons[-1] == "tool_calls"
    assert num_logprobs == len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens


def test_calls_and_results_go_to_the_template_as_objects() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
    message = Message.model_validate({"role": "assistant", "content": None, "tool_calls": [call, {"function": 5}]})
    read = message.as_template_reads()
    assert read["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": [1]}}
    assert (read["tool_calls"][1], read["content"]) == ({"function": 5}, "")
    call["function"]["arguments"] = "no JSON"  # type: ignore[index]
    broken = Message.model_validate({"role": "assistant", "tool_calls": [call]})
    assert broken.as_template_reads()["tool_calls"][0]["function"]["arguments"] == "no JSON"


def test_tools_in_a_large_body(server: HttpServer) -> None:
    tools = [{**TOOLS[0], "function": {**TOOLS[0]["function"], "description": "x" * 20_000}}]  # type: ignore[dict-item]
    body = {"messages": MESSAGES, "tools": tools}
    num_tokens = ask(server, "/tokenize", body).json["count"]
    assert num_tokens > 5_000
    answer = chat(server, tools=tools)
    assert (answer.status, answer.error["param"]) == (400, "prompt"), "longer than the model takes"
    padded = [*TOOLS, *({"type": "function", "function": {"name": f"f{i}"}} for i in range(3))]
    choice = chat(server, tools=padded, tool_choice="required", padding="x" * 20_000).json["choices"][0]
    assert choice["message"]["tool_calls"]


def test_an_unknown_parser_is_refused() -> None:
    with pytest.raises(OptionError, match="--tool-call-parser nope: write one of hermes"):
        Settings(served_names=("x",), tool_call_parser="nope")
